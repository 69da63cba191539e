-- Releases deliveries of a consumer unchanged. Arguments: subscription, consumer, and then entry
-- and fence of each, or the maximum number of all its deliveries. Returns how many are released or
-- need no release; fewer than requested if they are large. A consumer without deliveries is
-- removed.
local s, owner = T[1].names[ARGV[A]], ARGV[A + 1]
if not s then return { 'ok', 0 } end
if #ARGV ~= A + 2 then
  local looked = 0
  for a = A + 2, #ARGV, 2 do
    if bytes_left <= 0 then break end
    looked = looked + 1
    if holder_of(s, ARGV[a]) == tonumber(ARGV[a + 1]) then put_back(s, ARGV[a], false) end
  end
  conclude()
  return { 'ok', looked }
end
local pending = redis.pcall('XPENDING', s.ready, 'dwell', '-', '+', ARGV[A + 2], owner)
if pending.err then return { 'ok', 0 } end
local looked = 0
for _, found in ipairs(pending) do
  if bytes_left <= 0 then break end
  looked = looked + 1
  put_back(s, found[1], false)
end
if #pending == 0 then call('XGROUP', 'DELCONSUMER', s.ready, 'dwell', owner) end
conclude()
return { 'ok', looked }
