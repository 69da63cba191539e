-- Stores messages from one bucket in their topic. Arguments: the bucket, and then name, due time,
-- generation and item of each. A message that has arrived before is known, and does not arrive
-- again.
local t, bucket = T[1], ARGV[A]
for a = A + 1, #ARGV, 4 do
  local name, due, generation = ARGV[a], ARGV[a + 1], ARGV[a + 2]
  local token = bucket .. '/' .. name .. '/' .. generation
  if call('HEXISTS', t.known, token) == 0 then
    local item = unpack_item(ARGV[a + 3])
    local id, state = id_of(t, name, item), get(item, 'state') or 'scheduled'
    for _, its_own in ipairs({ 'n', 'generation', 'state', 'once', 'copy', 'to' }) do put(item, its_own, nil) end
    put(item, 'id', id)
    put(item, 'due', due)
    became(item, state, now, 'ready')
    enroll(item)
    list(item, id)
    deliver(t, t.subs, item, id)
    if name ~= published(t, id) then remember(t, id, due) end
    remember(t, name, due)
    -- Remembered as long as ids are, and at least for a day: the promoter may have died before the
    -- message left its bucket.
    call('HSET', t.known, token, due .. ' ')
    call('ZADD', t.forget, now + math.max(keep_ids, 86400000), token)
  end
end
conclude()
return { 'ok' }
