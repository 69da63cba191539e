-- Leases ready messages of one subscription. Arguments: subscription, maximum number, lease in
-- milliseconds, consumer, whether to promote due messages, maximum amount of other work, maximum
-- number of bytes, whether the answer of an earlier attempt of this call was lost, and the name of
-- the worker. At least one message is delivered if any is ready.
local t = T[1]
local name, most, lease, consumer = ARGV[A], tonumber(ARGV[A + 1]), tonumber(ARGV[A + 2]), ARGV[A + 3]
local promotes, bytes, worker = ARGV[A + 4] == '1', tonumber(ARGV[A + 6]), ARGV[A + 8]
local s = t.names[name]
-- The unclaimed messages were adopted under another name.
if not s or s.name ~= name then return { 'gone' } end

-- Deliveries of an earlier attempt of this call. The answer may be large, so only the fences and
-- the first entry are remembered. Later deliveries of the consumer are behind that entry.
local again = answered()
if again then
  if again[1] ~= 'ok' then return again end
  local handed = {}
  for _, pending in ipairs(call('XPENDING', s.ready, 'dwell', again[4], '+', again[3] - again[2], consumer)) do
    local fence = holder_of(s, pending[1])
    if fence and fence > again[2] and fence <= again[3] then
      handed[#handed + 1] = { pending[1], fence, read_entry(s, pending[1]) }
    end
  end
  return { 'ok', handed }
end

left = tonumber(ARGV[A + 5])
local is_more = some(recover, s)
if promotes then
  is_more = some(take_in, t) or is_more
  is_more = some(promote, t) or is_more
end

local function read(most)
  local command = { 'XREADGROUP', 'GROUP', 'dwell', consumer, 'COUNT', most, 'STREAMS', s.ready, '>' }
  local reply = redis.pcall(unpack(command))
  if reply and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then return nil, reply end
    call('XGROUP', 'CREATE', s.ready, 'dwell', '0', 'MKSTREAM')
    reply = call(unpack(command))
  end
  return reply and reply[1] and reply[1][2] or {}
end

-- Reads in small steps, as long as there is room; one by one if messages are large. A message
-- without room is unread again: it is the last one that the group was given.
local found, step = {}, 1
while #found < most and bytes > 0 do
  local wanted = math.min(step, most - #found)
  local some, problem = read(wanted)
  if problem then
    -- Work that was done before is counted.
    conclude()
    return problem
  end
  step = math.min(step * 2, 8)
  local is_full = false
  for _, entry in ipairs(some) do
    local size = 0
    for _, part in ipairs(entry[2]) do size = size + #part end
    if size > 65536 then step = 1 end
    is_full = is_full or (size > bytes and #found > 0)
    if is_full then
      call('XACK', s.ready, 'dwell', entry[1])
    else
      bytes = bytes - size
      found[#found + 1] = entry
    end
  end
  if is_full then call('XGROUP', 'SETID', s.ready, 'dwell', found[#found][1]) end
  if is_full or #some < wanted then break end
end

local handed = {}
if #found > 0 then
  local token = call('INCRBY', S.seq, #found) - #found
  local held, leases = {}, {}
  for i, entry in ipairs(found) do
    local fence = token + i
    held[#held + 1] = entry[1]
    held[#held + 1] = cmsgpack.pack({ fence, consumer, now, worker })
    leases[#leases + 1] = later + lease
    leases[#leases + 1] = entry[1]
    handed[i] = { entry[1], fence, entry[2] }
  end
  call('HSET', s.held, unpack(held))
  call('ZADD', s.leases, unpack(leases))
  remember_call(lane, serial, { 'ok', token, token + #found, found[1][1] })
  if not t.dead then
    local of = home(t, s.name)
    count(of, 'ready', -#found)
    count(of, 'processing', #found)
  end
end

local function last(key)
  local entry = call('XREVRANGE', key, '+', '-', 'COUNT', 1)
  return entry[1] and entry[1][1] or '0-0'
end
conclude()
if #handed > 0 then return { 'ok', handed } end
-- If the first attempt is still in flight, its deliveries would be lost.
if ARGV[A + 7] == '1' then remember_call(lane, serial, { 'outdated' }) end
return {
  'ok', handed, is_more and 1 or 0, promotes and until_next(t.due) or -1, until_next(s.leases), last(s.ready), last(t.wake),
  stuck_at,
}
