-- Renews leases of one subscription. Arguments: subscription, owner, duration, and entry and fence
-- of each. Returns one word each.
local s, owner, by = T[1].names[ARGV[A]], ARGV[A + 1], tonumber(ARGV[A + 2])
local answers = {}
for a = A + 3, #ARGV, 2 do
  local token, holder = holder_of(s, ARGV[a])
  if token == tonumber(ARGV[a + 1]) and holder == owner then
    call('ZADD', s.leases, later + by, ARGV[a])
    answers[#answers + 1] = 'ok'
  else
    answers[#answers + 1] = 'stale'
  end
end
return { 'ok', answers }
