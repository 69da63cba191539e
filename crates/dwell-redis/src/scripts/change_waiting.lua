-- Changes what waits under a name in one topic. Arguments: name, `cancel` or `reschedule`, due (kind and value), by whom.
local t, name, what, by = T[1], ARGV[A], ARGV[A + 1], ARGV[A + 4]
local again = answered()
if again then return again end
local score = call('ZSCORE', t.due, name)
if score then
  if tonumber(score) <= now then return { 'ok', 'late' } end
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
  conclude()
  return answer_once({ 'ok', 'done' })
end
return { 'ok', known(t, name) and 'late' or 'none' }
