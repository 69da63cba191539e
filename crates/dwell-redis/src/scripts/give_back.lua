-- Gives back what a consumer holds, as it came: its subscription, its name, and then entry and fence of each, or how many at most
-- of all that there is. Answers how many there were; a consumer without anything is removed.
local s, owner = T[1].names[ARGV[A]], ARGV[A + 1]
if #ARGV ~= A + 2 then
  for a = A + 2, #ARGV, 2 do
    local held = call('HGET', s.held, ARGV[a])
    local token = held and cmsgpack.unpack(held)[1]
    if token == tonumber(ARGV[a + 1]) then put_back(s, ARGV[a], false) end
  end
  conclude()
  return { 'ok', 0 }
end
local pending = redis.pcall('XPENDING', s.ready, 'dwell', '-', '+', ARGV[A + 2], owner)
if pending.err then return { 'ok', 0 } end
for _, found in ipairs(pending) do put_back(s, found[1], false) end
if #pending == 0 then call('XGROUP', 'DELCONSUMER', s.ready, 'dwell', owner) end
conclude()
return { 'ok', #pending }
