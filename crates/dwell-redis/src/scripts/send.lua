-- Records sends to another broker with ids that users chose. Six arguments for each: the step
-- (`begin`, `sent` or `unsent`), handling of a known id (`f` fail, `r` replace), content, name, due
-- time, item. Returns one pair each, as `accept.lua` does.
local t = T[1]
local answers = {}

-- Counts the names of a message that are being sent, for by-id calls: `!` and their number, until one of them is sent.
local function count_sending(id, by)
  local _, first = known(t, id)
  if first and string.sub(first, 1, 1) ~= '!' then
    if by > 0 then remember(t, id) end
    return
  end
  local count = (first and tonumber(string.sub(first, 2)) or 0) + by
  if count > 0 then
    remember(t, id, nil, '!' .. text(count))
  else
    call('HDEL', t.known, id)
    call('ZREM', t.forget, id)
  end
end

for a = A, #ARGV, 6 do
  local step, once, content, name, due = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local item = cmsgpack.unpack(ARGV[a + 5])
  local id = get(item, 'id')
  local its_due, first = known(t, name)
  local answer
  if step == 'begin' then
    local existing = once == 'f' and stored(t, name)
    if existing then
      local waits_until = get(existing, 'due') or text(tonumber(call('ZSCORE', t.due, name)))
      answer = { is_same(existing, item) and 'duplicate' or 'conflict', waits_until }
    elseif once == 'f' then
      answer = answer_known(its_due, first, content)
    end
    if not answer then
      local is_again = first and string.sub(first, 1, 1) == '!'
      if not is_again and name ~= published(t, id) then count_sending(id, 1) end
      remember(t, name, nil, (is_again and '!!' or '!') .. content)
    end
  elseif step == 'sent' then
    -- Lookups by id also use the message id.
    if name ~= published(t, id) then remember(t, id) end
    remember(t, name, due, content)
  elseif first == '!' .. content then
    call('HDEL', t.known, name)
    call('ZREM', t.forget, name)
    if name ~= published(t, id) then count_sending(id, -1) end
  end
  answers[#answers + 1] = answer or { 'sent', '' }
end
return { 'ok', answers }
