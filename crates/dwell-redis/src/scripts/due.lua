-- Returns due messages of one bucket, up to a number and a number of bytes. They stay until they
-- have arrived. Returns name, due time, generation and item of each; if there is none, the time
-- until the next one in milliseconds (-1 for never), and the last signal.
local t, found, bytes = T[1], {}, 0
for _, name in ipairs(call('ZRANGEBYSCORE', t.due, '-inf', now, 'LIMIT', 0, ARGV[A])) do
  local raw = call('HGET', t.waiting, name)
  bytes = bytes + (raw and #raw or 0)
  -- All of them must fit into one call.
  if bytes > tonumber(ARGV[A + 1]) and #found > 0 then break end
  if raw then
    local item = unpack_item(raw)
    local due = get(item, 'due') or text(tonumber(call('ZSCORE', t.due, name)))
    found[#found + 1] = { name, due, get(item, 'generation') or '', raw }
  end
end
local signal = call('XREVRANGE', t.wake, '+', '-', 'COUNT', 1)
return { 'ok', found, until_next(t.due), signal[1] and signal[1][1] or '0-0' }
