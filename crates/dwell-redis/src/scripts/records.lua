-- Returns the records of some messages, or one page of all records, in the order of their creation.
-- Arguments: `ids` and ids, or `page`, a time, an id and the maximum number. Returns place, topic,
-- name, due time, item and holder of each. By id, the last ids may be missing if the records before
-- them are large. A page also returns where it ended.
local found = {}

local function waiting(t, name, n)
  local raw = call('HGET', t.waiting, name)
  if not raw then return end
  local item = unpack_item(raw)
  if n and get(item, 'n') ~= n then return end
  local score = tonumber(call('ZSCORE', t.due, name))
  put(item, 'id', id_of(t, name, item))
  -- A due message is ready, even if it has not been promoted yet.
  local place = score and score <= now and 'd' or 'w'
  found[#found + 1] = { place, t.topic, get(item, 'to') or '', get(item, 'due') or text(score), item, {} }
  return true
end

local function located(n)
  local where = call('HGET', S.at, n)
  if not where then return end
  if where == 'o' then
    local raw = call('HGET', S.over, n)
    if raw then found[#found + 1] = { 'o', '', '', '', unpack_item(raw), {} } end
    return true
  end
  local topic, name, entry = string.match(where, '^r([^/]*)/([^/]*)/(.*)$')
  local t = by_topic[topic]
  local s = t and t.names[name]
  local item = s and read_entry(s, entry)
  if item then
    local token, _, at, worker = holder_of(s, entry)
    local holder = {}
    if token then
      local ends = tonumber(call('ZSCORE', s.leases, entry) or 0)
      -- The remaining time is computed here, because the reader's clock may differ.
      holder = { worker, text(at), text(ends), text(math.max(0, ends - now)) }
    end
    local due = get(item, 'due') or string.match(entry, '^%d+')
    found[#found + 1] = { 'r', topic, s.name, due, item, holder, entry }
  end
  return true
end

local function record(id, n)
  if located(n) then return end
  for _, t in ipairs(T) do
    for _, name in ipairs(names_of(t, id)) do
      if waiting(t, name, n) then return end
    end
  end
end

local function of_id(id)
  for n in string.gmatch(call('HGET', S.ids, id) or '', '%S+') do located(n) end
  for _, t in ipairs(T) do
    for _, name in ipairs(names_of(t, id)) do
      local item = stored(t, name)
      -- Another message may have a name that looks like this message's.
      if item and id_of(t, name, item) == id then waiting(t, name) end
    end
  end
end

-- Returns the number of bytes of a record.
local function weight(record)
  return #(get(record[5], 'body') or '') + #(get(record[5], 'result') or '')
end

if ARGV[A] == 'ids' then
  local each, bytes = {}, 0
  for a = A + 1, #ARGV do
    if bytes >= ENOUGH then break end
    found = {}
    of_id(ARGV[a])
    for _, record in ipairs(found) do bytes = bytes + weight(record) end
    each[#each + 1] = found
  end
  return { 'ok', each }
end

local from, after, most = tonumber(ARGV[A + 1]), ARGV[A + 2], tonumber(ARGV[A + 3])
local rank = call('ZCOUNT', S.made, '-inf', '(' .. text(from))
local looked, last, bytes = 0, nil, 0
while looked < most and bytes < ENOUGH do
  local window = call('ZRANGE', S.made, rank, rank + most - 1, 'WITHSCORES')
  for i = 1, #window, 2 do
    local member, score = window[i], tonumber(window[i + 1])
    if looked < most and bytes < ENOUGH and (score > from or member > after) then
      looked, last = looked + 1, { text(score), member }
      local id, n = string.match(member, '^(.*)/(%d+)$')
      local before = #found
      if id then record(id, n) end
      if #found > before then bytes = bytes + weight(found[#found]) end
    end
  end
  rank = rank + most
  if #window < most * 2 then break end
end
return { 'ok', found, (looked == most or bytes >= ENOUGH) and last or {} }
