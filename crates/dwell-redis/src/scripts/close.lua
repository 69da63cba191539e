-- Removes a bucket whose time is over if there is nothing left in it, records included. Arguments: when its time is over, and
-- whether only to look. Answers whether it is gone, or could be.
local t = T[1]
local left = call('ZCARD', t.due) + call('HLEN', t.waiting) + call('ZCARD', t.forget)
  + call('ZCARD', S.made) + call('ZCARD', S.ended)
if left > 0 or now <= tonumber(ARGV[A]) then return { 'ok', 0 } end
if ARGV[A + 1] == 'look' then return { 'ok', 1 } end
-- The last calls of links go by themselves.
call('UNLINK', S.seq, S.tally, S.at, S.ids, t.wake, t.aliases, t.known)
return { 'ok', 1 }
