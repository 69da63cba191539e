-- Promotes due messages of one topic, takes in messages of other programs, and recovers deliveries
-- of dead workers. Argument: maximum amount of work. Returns whether there is more, the time until
-- the next message is due in milliseconds (-1 for never), the last signal, and the last incoming
-- entry if some could not be taken in.
local t = T[1]
left = tonumber(ARGV[A])
local is_more = some(take_in, t)
is_more = some(promote, t) or is_more
local wait_for = until_next(t.due)
for _, s in ipairs(t.subs) do
  -- The remaining deliveries follow in the next round.
  is_more = bytes_left <= 0 or some(recover, s) or is_more
  local lease = until_next(s.leases)
  if lease >= 0 and (wait_for < 0 or lease < wait_for) then wait_for = lease end
end
conclude()
local signal = call('XREVRANGE', t.wake, '+', '-', 'COUNT', 1)
return { 'ok', is_more and 1 or 0, wait_for, signal[1] and signal[1][1] or '0-0', stuck_at }
