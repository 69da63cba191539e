-- Stores messages of users and copies for one topic. Ten arguments for each message: subscription,
-- due time (kind and value), handling of a taken name (`f` fail, `r` replace, `c` a copy, none: a
-- free name), content, name, state, origin, the call that may have stored it before, item. Returns
-- one pair each: result and due time.
local t = T[1]
local again = answered()
if again then return again end

-- Returns the answer of an earlier call, whose outcome is unknown, for one message. If that call
-- has not arrived, it is outdated from now on.
local function before(call_of, number, index)
  local last, its = last_call(call_of)
  if last == number then
    local answer = its[2][index]
    -- Its subscription may exist by now.
    if answer and answer[1] == 'missing' then answer = nil end
    return answer, its
  end
  if last and tonumber(last) > tonumber(number) then return nil end
  return nil, { 'ok', {} }
end

local answers = {}
for a = A, #ARGV, 10 do
  local to, mode, value, once = ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3]
  local content, name, state, from = ARGV[a + 4], ARGV[a + 5], ARGV[a + 6], ARGV[a + 7]
  local item = cmsgpack.unpack(ARGV[a + 9])
  local id = get(item, 'id')
  local answer, its
  local call_of, number, index = string.match(ARGV[a + 8], '^(%d+) (%d+) (%d+)$')
  index = tonumber(index)
  if call_of then answer, its = before(call_of, number, index) end
  local is_stored = answer ~= nil
  local subs = destinations(t, to)
  if is_stored then
    its = nil
  elseif not subs then
    answer = { 'missing', '' }
  else
    local score, exact = resolve(mode, value)
    -- In a bucket messages are only stored. The promoter that moves them to their topic checks the
    -- time.
    local waits = score > now or t.bucket
    local existing
    local is_chosen = once == 'f' or once == 'r'
    if is_chosen then
      existing = stored(t, name)
    elseif waits and once == 'c' then
      name, existing = name_of_copy(t, name, content, item)
    elseif waits then
      name = free_name(t, name)
    end
    if once == 'f' then
      if existing then
        local due = get(existing, 'due') or text(tonumber(call('ZSCORE', t.due, name)))
        answer = { is_same(existing, item) and 'duplicate' or 'conflict', due }
      else
        local due, first = known(t, name)
        answer = answer_known(due, first, content)
      end
    end
    if not answer then
      if from ~= '' then put(item, 'from', from) end
      enroll(item)
      if existing then
        local old, its_id = unwait(t, name)
        count(home(t, get(old, 'to'), old), shown(t, get(old, 'state') or 'scheduled'), -1)
        forget(old, its_id)
      end
      list(item, id)
      if waits then
        if to ~= '' then put(item, 'to', subs[1].name) end
        if is_chosen then put(item, 'once', once .. content) end
        if once == 'c' then put(item, 'copy', '1') end
        if state ~= 'scheduled' then put(item, 'state', state) end
        count(home(t, to ~= '' and subs[1].name or '', item), shown(t, state), 1)
        -- Even if the message was in this bucket before.
        if t.bucket then put(item, 'generation', text(now) .. '.' .. text(call('INCR', S.seq))) end
        wait(t, name, id, item, score, exact)
        answer = { 'waits', exact or text(score) }
      else
        deliver(t, subs, item, id)
        if is_chosen then
          -- Lookups by id also use the message id.
          if name ~= published(t, id) then remember(t, id) end
          remember(t, name, nil, content)
        end
        answer = { #subs == 0 and 'discarded' or 'sent', '' }
      end
    end
  end
  if its then
    its[2][index] = answer
    remember_call(call_of, number, its)
  end
  answers[#answers + 1] = answer
end
conclude()
return answer_once({ 'ok', answers })
