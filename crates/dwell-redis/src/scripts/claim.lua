-- Hands out what is ready of one subscription. Arguments: subscription, how many, lease in milliseconds, consumer, whether
-- to make ready what is due, and how much to do beside.
local t = T[1]
local name, most, lease, consumer = ARGV[A], tonumber(ARGV[A + 1]), tonumber(ARGV[A + 2]), ARGV[A + 3]
local promotes, limit = ARGV[A + 4] == '1', tonumber(ARGV[A + 5])
local s = t.names[name]
-- What was kept for nobody was adopted under another name.
if not s or s.name ~= name then return { 'gone' } end

local is_more = recover(s, limit) == limit
if promotes then
  is_more = take_in(t, limit) == limit or is_more
  is_more = promote(t, limit) == limit or is_more
end

local found = {}
if most > 0 then
  local read = { 'XREADGROUP', 'GROUP', 'dwell', consumer, 'COUNT', most, 'STREAMS', s.ready, '>' }
  local reply = redis.pcall(unpack(read))
  if reply and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then return reply end
    call('XGROUP', 'CREATE', s.ready, 'dwell', '0', 'MKSTREAM')
    reply = call(unpack(read))
  end
  found = reply and reply[1] and reply[1][2] or {}
end

local handed = {}
if #found > 0 then
  local token = call('INCRBY', S.seq, #found) - #found
  local held, leases = {}, {}
  for i, entry in ipairs(found) do
    local fence = token + i
    held[#held + 1] = entry[1]
    held[#held + 1] = cmsgpack.pack({ fence, consumer, now })
    leases[#leases + 1] = later + lease
    leases[#leases + 1] = entry[1]
    handed[i] = { entry[1], fence, entry[2] }
  end
  call('HSET', s.held, unpack(held))
  call('ZADD', s.leases, unpack(leases))
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
return {
  'ok', handed, is_more and 1 or 0, promotes and until_next(t.due) or -1, until_next(s.leases), last(s.ready), last(t.wake),
}
