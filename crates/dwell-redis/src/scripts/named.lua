-- Returns the pending entries of one message id in one topic, under any name.
local t, id = T[1], ARGV[A]
local found = {}
for _, name in ipairs(names_of(t, id)) do
  local raw = call('HGET', t.waiting, name)
  if raw then
    local item = unpack_item(raw)
    local score = tonumber(call('ZSCORE', t.due, name))
    if id_of(t, name, item) == id and score > now then found[#found + 1] = { name, text(score), item } end
  end
end
return { 'ok', found, 0 }
