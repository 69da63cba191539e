-- Returns one page of the pending entries of a topic, after a due time and a name. Arguments: due
-- time, name, maximum number. Returns name, due time and item of each, and whether there is more.
local t, from, after, most = T[1], tonumber(ARGV[A]), ARGV[A + 1], tonumber(ARGV[A + 2])
-- A due message is not pending, even if it has not been promoted yet.
if from <= now then from, after = now + 1, '' end
local rank = call('ZCOUNT', t.due, '-inf', '(' .. text(from))
local found, is_more, bytes = {}, 0, 0
while #found < most and bytes < ENOUGH do
  local window = call('ZRANGE', t.due, rank, rank + most - 1, 'WITHSCORES')
  for i = 1, #window, 2 do
    local name, score = window[i], tonumber(window[i + 1])
    if #found < most and bytes < ENOUGH and (score > from or name > after) then
      local raw = call('HGET', t.waiting, name)
      if raw then
        bytes = bytes + #raw
        found[#found + 1] = { name, text(score), unpack_item(raw) }
      end
    end
  end
  rank = rank + most
  if #window < most * 2 then break end
end
if call('ZCARD', t.due) > rank or #found == most or bytes >= ENOUGH then is_more = 1 end
return { 'ok', found, is_more }
