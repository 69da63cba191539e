-- Removes from one shard what has arrived in its topic: name and generation of each.
local t = T[1]
for a = A, #ARGV, 2 do
  local raw = call('HGET', t.waiting, ARGV[a])
  local item = raw and unpack_item(raw)
  if item and (get(item, 'generation') or '') == ARGV[a + 1] then
    local id, score
    item, id, score = unwait(t, ARGV[a])
    remember(t, ARGV[a], get(item, 'due') or text(score))
    count(home(t, '', item), get(item, 'state') or 'scheduled', -1)
    forget(item, id)
  end
end
conclude()
return { 'ok' }
