-- Changes the pending entries of one message in one topic, some at a time. Arguments: message id,
-- `cancel` or `reschedule`, due time (kind and value), by whom, and the last name of the entries
-- that were changed before. Returns `done`, `late` or `none`, and the last name if there may be
-- more.
local t, wanted, what, by, after = T[1], ARGV[A], ARGV[A + 1], ARGV[A + 4], ARGV[A + 5]
local MOST = 200
local again = answered()
if again then return again end
local is_changed, is_late = false, false

local function change(name)
  local score = tonumber(call('ZSCORE', t.due, name))
  if score <= now or t.dead or is_too_late(name) then
    is_late = true
    return
  end
  local item, id = unwait(t, name)
  local state = shown(t, get(item, 'state') or 'scheduled')
  local of = home(t, get(item, 'to'), item)
  if what == 'cancel' then
    count(of, state, -1)
    became(item, state, now, 'cancelled', by)
    finish(item, id, of, 'cancelled')
  else
    local due, exact = resolve(ARGV[A + 2], ARGV[A + 3])
    became(item, state, now, state, by)
    wait(t, name, id, item, due, exact)
  end
  is_changed = true
end

local names = aliases_of(t, wanted, after, MOST)
local last = #names == MOST and names[MOST] or ''
if after == '' then
  names[#names + 1] = published(t, wanted)
  names[#names + 1] = wanted
end
for _, name in ipairs(names) do
  local item = stored(t, name)
  -- Another message may have a name that looks like this message's.
  if item and call('ZSCORE', t.due, name) and id_of(t, name, item) == wanted then change(name) end
end
if is_changed then
  conclude()
  return answer_once({ 'ok', 'done', last })
end
is_late = is_late or known(t, wanted) or known(t, published(t, wanted))
return { 'ok', is_late and 'late' or 'none', last }
