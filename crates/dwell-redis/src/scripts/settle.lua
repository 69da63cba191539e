-- Settles deliveries of one subscription, each by its entry, its fence and its owner. Sixteen
-- arguments for each: entry, fence, action, worker, error, result, and for a move: topic,
-- subscription, due time (kind and value), name, content, state, origin, item; and the call that
-- may have settled it before. Returns one word each.
local t = T[1]
local s, owner = t.names[ARGV[A]], ARGV[A + 1]
local again = answered()
if again then return again end
local answers = {}

-- The answers of earlier calls with an unknown outcome, by lane and number. For a call that has not
-- arrived: the answers that it gets if it arrives later.
local unheard = {}

-- Returns which of them may have settled a delivery before, and with which answer.
local function before(written)
  local call_of, number, index = string.match(written, '^(%d+) (%d+) (%d+)$')
  if not call_of then return nil end
  local key = call_of .. ' ' .. number
  if not unheard[key] then
    local last, its = last_call(call_of)
    if last ~= number then its = { 'ok', {} } end
    unheard[key] = { lane = call_of, number = number, last = tonumber(last or 0), answers = its }
  end
  return unheard[key], tonumber(index)
end

local function settle(a)
  local entry, fence, action, worker = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2], ARGV[a + 3]
  local error = ARGV[a + 4] ~= '' and ARGV[a + 4] or nil
  local token, holder, at, runner = holder_of(s, entry)
  if token ~= fence or holder ~= owner then return 'stale' end

  if action == 'release' then
    put_back(s, entry, false, worker, error)
    return 'ok'
  end

  local target, subs
  if action == 'move' then
    target = by_topic[ARGV[a + 6]]
    subs = target and destinations(target, ARGV[a + 7])
    if not subs then return 'missing' end
  end
  local old
  if has_ledger or action == 'move' then old = read_entry(s, entry) end
  local id = old and (get(old, 'id') or entry)
  if has_ledger and old then
    count(home(t, s.name, old), shown(t, 'processing'), -1)
    became(old, shown(t, 'ready'), at, shown(t, 'processing'), runner)
  end
  if action ~= 'move' then
    if keep_ids > 0 and id then
      local topic = published(t, id)
      for _, name in ipairs({ topic, topic .. '/' .. s.name, id }) do
        if call('HEXISTS', t.known, name) == 1 then call('ZADD', t.forget, 'GT', now + keep_ids, name) end
      end
    end
    if has_ledger and old and action == 'gone' then
      forget(old, id)
    elseif has_ledger and old then
      became(old, nil, now, action, worker, error)
      if error then put(old, 'error', error) end
      if worker ~= '' then put(old, 'worker', worker) end
      local result = ARGV[a + 5]
      finish(old, id, home(t, s.name, old), action, result ~= '' and string.sub(result, 2) or nil)
    end
    take_out(s, entry)
    return 'ok'
  end

  local score, exact = resolve(ARGV[a + 8], ARGV[a + 9])
  local name, content, state, from = ARGV[a + 10], ARGV[a + 11], ARGV[a + 12], ARGV[a + 13]
  local item = cmsgpack.unpack(ARGV[a + 14])
  local its_id = get(item, 'id')
  if from ~= '' then put(item, 'from', from) end
  if has_ledger and old then
    local n = get(old, 'n')
    if n then
      for _, kept in ipairs({ 'n', 'born', 'past' }) do put(item, kept, get(old, kept)) end
      -- Under its id it stays in the list.
      if its_id == id then unlocate(old, id) else forget(old, id) end
    else
      enroll(item)
    end
    put(item, 'error', error or get(old, 'error'))
    if worker ~= '' then put(item, 'worker', worker) end
    if not n or its_id ~= id then list(item, its_id) end
  end
  if score > now then
    local there
    name, there = name_of_copy(target, name, content, item)
    if there then
      local replaced, replaced_id = unwait(target, name)
      count(home(target, get(replaced, 'to'), replaced), shown(target, get(replaced, 'state') or 'scheduled'), -1)
      forget(replaced, replaced_id)
    end
    local to = ARGV[a + 7] ~= '' and subs[1].name or nil
    put(item, 'to', to)
    if state ~= 'scheduled' then put(item, 'state', state) end
    became(item, nil, now, shown(target, state), worker, error)
    count(home(target, to, item), shown(target, state), 1)
    wait(target, name, its_id, item, score, exact)
  else
    became(item, nil, now, shown(target, 'ready'), worker, error)
    deliver(target, subs, item, its_id)
  end
  take_out(s, entry)
  return 'ok'
end

for a = A + 2, #ARGV, 16 do
  local word = 'failed'
  safely(function() word = settle(a) end)
  local its, index = before(ARGV[a + 15])
  if its and word == 'stale' and its.answers[2][index] == 'ok' then word = 'ok' end
  -- If this answer is lost as well, the next attempt still refers to the first call.
  if its and word == 'ok' then its.answers[2][index] = 'ok' end
  answers[#answers + 1] = word
end
for _, its in pairs(unheard) do
  if its.last <= tonumber(its.number) then remember_call(its.lane, its.number, its.answers) end
end
conclude()
return answer_once({ 'ok', answers })
