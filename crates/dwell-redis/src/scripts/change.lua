-- Changes one record. Arguments: id, number, action (`cancel`, `recall`, `reschedule`, `replay`,
-- `discard`, `remove`), by whom, due time (kind and value), and for a replay: topic, subscription,
-- item. Returns `done` or `late`. `recall` cancels a message that is not leased, even if it is due.
local id, n, what, by = ARGV[A], ARGV[A + 1], ARGV[A + 2], ARGV[A + 3]

local again = answered()
if again then return again end

local is_control = what == 'cancel' or what == 'recall' or what == 'reschedule'

local function cancel(item, of, state)
  count(of, state, -1)
  became(item, state, now, 'cancelled', by)
  unlocate(item, id)
  finish(item, id, of, 'cancelled')
  conclude()
  return answer_once({ 'ok', 'done' })
end

-- Takes a dead item from its place.
local function anew(item, t, name)
  local of = home(t, name, item)
  count(of, 'dead', -1)
  if what == 'remove' then
    forget(item, id)
  elseif what == 'discard' then
    became(item, 'dead', now, 'discarded', by)
    unlocate(item, id)
    finish(item, id, of, 'discarded')
  else
    local target = by_topic[ARGV[A + 6]]
    local fresh = cmsgpack.unpack(ARGV[A + 8])
    became(item, 'dead', now, 'ready', by)
    unlocate(item, id)
    for _, kept in ipairs({ 'n', 'born', 'past' }) do put(fresh, kept, get(item, kept)) end
    add(target.names[ARGV[A + 7]], fresh, id)
  end
  conclude()
  return answer_once({ 'ok', 'done' })
end

if what == 'replay' then
  local target = by_topic[ARGV[A + 6]]
  if not target or not target.names[ARGV[A + 7]] then return { 'ok', 'missing' } end
end

local where = call('HGET', S.at, n)
if where then
  local topic, name, entry = string.match(where, '^r([^/]*)/([^/]*)/(.*)$')
  local t = topic and by_topic[topic]
  if not t or is_control == t.dead or (is_control and what ~= 'recall') then return { 'ok', 'late' } end
  local s = t.names[name]
  local item = s and read_entry(s, entry)
  if not item or call('HEXISTS', s.held, entry) == 1 then return { 'ok', 'late' } end
  local answer
  if what == 'recall' then
    answer = cancel(item, home(t, s.name, item), 'ready')
  else
    answer = anew(item, t, s.name)
  end
  take_out(s, entry)
  return answer
end

for _, t in ipairs(T) do
  for _, name in ipairs(names_of(t, id)) do
    local raw = call('HGET', t.waiting, name)
    local item = raw and unpack_item(raw)
    if item and get(item, 'n') == n then
      local score = tonumber(call('ZSCORE', t.due, name))
      -- A due message in a bucket may have arrived in its topic already, and be leased there.
      if (score <= now and (what ~= 'recall' or t.bucket)) or is_control == t.dead then return { 'ok', 'late' } end
      if is_control and is_too_late(name) then return { 'ok', 'late' } end
      item = unwait(t, name)
      if t.dead then return anew(item, t, get(item, 'to') or '') end
      local state, of = get(item, 'state') or 'scheduled', home(t, get(item, 'to'), item)
      if what ~= 'reschedule' then return cancel(item, of, state) end
      local due, exact = resolve(ARGV[A + 4], ARGV[A + 5])
      became(item, state, now, state, by)
      wait(t, name, id, item, due, exact)
      conclude()
      return answer_once({ 'ok', 'done' })
    end
  end
end
return { 'ok', 'late' }
