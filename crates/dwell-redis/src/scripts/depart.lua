-- Removes messages that have arrived in their topic from one bucket. Arguments: name and generation
-- of each.
local t = T[1]
for a = A, #ARGV, 2 do
  local raw = call('HGET', t.waiting, ARGV[a])
  local item = raw and unpack_item(raw)
  if item and (get(item, 'generation') or '') == ARGV[a + 1] then
    local id
    item, id = unwait(t, ARGV[a])
    count(home(t, '', item), get(item, 'state') or 'scheduled', -1)
    forget(item, id)
  end
end
conclude()
return { 'ok' }
