-- Removes a bucket that is over and empty, including records. Arguments: when it is over, and
-- whether only to check. Returns whether it is removed, or could be.
local t = T[1]
local left = call('ZCARD', t.due) + call('HLEN', t.waiting) + call('ZCARD', t.forget)
  + call('ZCARD', S.made) + call('ZCARD', S.ended)
if left > 0 or now <= tonumber(ARGV[A]) then return { 'ok', 0 } end
if ARGV[A + 1] == 'look' then return { 'ok', 1 } end
-- The last calls of links expire.
call('UNLINK', S.seq, S.tally, S.at, S.ids, t.wake, t.aliases, t.known)
return { 'ok', 1 }
