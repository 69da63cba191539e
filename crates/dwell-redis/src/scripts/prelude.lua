-- The common start of all scripts: the time, the keys by name, and shared functions.
--
-- An item is a message with its history, as a flat list of names and values. It is stored in
-- exactly one place: in the hash of pending messages, in the stream of one subscription, or in the
-- hash of finished messages.
local call = redis.call
local LARGEST = 9007199254740991
-- Maximum number of bytes that are returned at once, besides the last message, and that are moved,
-- which takes longer.
local ENOUGH, HEAVY = 1048576, 262144

local seconds, micros
if ARGV[1] == '' then
  local time = call('TIME')
  seconds, micros = tonumber(time[1]), tonumber(time[2])
else
  seconds, micros = math.floor(tonumber(ARGV[1]) / 1000), (tonumber(ARGV[1]) % 1000) * 1000
end
-- Rounded down to decide whether a message is due, and up to resolve a delay: never early.
local now = seconds * 1000 + math.floor(micros / 1000)
local later = seconds * 1000 + math.ceil(micros / 1000)

local has_ledger = ARGV[2] == '1'
local keep_ids, keep_done = tonumber(ARGV[3]), tonumber(ARGV[4])

local S = {
  seq = KEYS[1], made = KEYS[2], at = KEYS[3], ids = KEYS[4], over = KEYS[5], ended = KEYS[6], tally = KEYS[7],
  calls = KEYS[8],
}
-- Lane and serial number of this call of the link that owns `calls`; empty if a repetition does no
-- harm.
local lane, serial = ARGV[6], ARGV[7]
local T, by_topic = {}, {}
-- Index of the script's own first argument.
local A = 8
do
  local k = 9
  for b = 1, tonumber(ARGV[5]) do
    local t = { topic = ARGV[A], version = ARGV[A + 1], dead = ARGV[A + 3] == '1', bucket = ARGV[A + 3] == '2', subs = {}, names = {} }
    local adopter, count = ARGV[A + 2], tonumber(ARGV[A + 4])
    A = A + 5
    t.config, t.waiting, t.due, t.wake = KEYS[k], KEYS[k + 1], KEYS[k + 2], KEYS[k + 3]
    t.known, t.forget, t.aliases, t.incoming = KEYS[k + 4], KEYS[k + 5], KEYS[k + 6], KEYS[k + 7]
    k = k + 8
    for i = 1, count do
      local s = { name = ARGV[A], t = t, ready = KEYS[k], leases = KEYS[k + 1], held = KEYS[k + 2] }
      t.subs[i], t.names[s.name] = s, s
      A, k = A + 1, k + 3
    end
    if adopter ~= '' and not t.names[t.topic] then t.names[t.topic] = t.names[adopter] end
    if (call('HGET', t.config, 'version') or '0') ~= t.version then return { 'reload' } end
    T[b], by_topic[t.topic] = t, t
  end
end

-- A script that fails in the middle leaves half of its work. Likely causes are therefore checked
-- first.
do
  local slot = { 'string', 'zset', 'hash', 'hash', 'hash', 'zset', 'hash', 'hash' }
  local topic = { 'hash', 'hash', 'zset', 'stream', 'hash', 'zset', 'zset', 'stream' }
  local subscription = { 'stream', 'zset', 'hash' }
  local k = 1
  local function check(types)
    for _, type in ipairs(types) do
      local is = call('TYPE', KEYS[k])['ok']
      if is ~= type and is ~= 'none' then return { err = 'WRONGTYPE ' .. KEYS[k] .. ' is not a ' .. type } end
      k = k + 1
    end
  end
  local problem = check(slot)
  for _, t in ipairs(T) do
    problem = problem or check(topic)
    for _ = 1, #t.subs do problem = problem or check(subscription) end
  end
  if problem then return problem end
end

local function text(number) return string.format('%.0f', number) end

local function get(item, name)
  for i = 1, #item, 2 do
    if item[i] == name then return item[i + 1] end
  end
end

local function put(item, name, value)
  for i = 1, #item, 2 do
    if item[i] == name then
      if value then
        item[i + 1] = value
      else
        table.remove(item, i)
        table.remove(item, i)
      end
      return
    end
  end
  if value then
    item[#item + 1] = name
    item[#item + 1] = value
  end
end

local function copy(item)
  local other = {}
  for i = 1, #item do other[i] = item[i] end
  return other
end

-- Returns a number that any program may have written, if it has at most this number of digits.
local function whole(value, digits)
  return value and #value <= digits and string.match(value, '^%d+$') and tonumber(value)
end

-- Whether this is a list of names and values that a script can pass on.
local function is_item(list)
  if type(list) ~= 'table' or #list == 0 or #list % 2 == 1 or #list > 2000 then return false end
  for i = 1, #list do
    if type(list[i]) ~= 'string' then return false end
  end
  return true
end

-- Decodes an item. A value of another program that is not an item is a message with a body only.
local function unpack_item(raw)
  local is_read, item = pcall(cmsgpack.unpack, raw)
  if is_read and is_item(item) then return item end
  return { 'foreign', 'waiting', 'body', raw }
end

local function size_of(item)
  local size = 0
  for i = 1, #item do size = size + #item[i] end
  return size
end

local function warn(problem)
  problem = type(problem) == 'table' and problem.err or problem
  redis.log(redis.LOG_WARNING, 'dwell: ' .. tostring(problem))
end

-- Changes of counts, written at the end of the script, and additions to the list of records.
local counted, listed = {}, {}

-- Processes one message of many. If that fails because of data of another program, the message
-- stays in its place, and the others are not affected: additions come before removals, and counts
-- and list entries are taken back.
local function safely(what, ...)
  local before = {}
  for field, by in pairs(counted) do before[field] = by end
  listed = {}
  local is_done, problem = pcall(what, ...)
  if not is_done then
    counted = before
    for _, member in ipairs(listed) do call('ZREM', S.made, member) end
    warn(problem)
  end
  return is_done
end

-- Whether two contents are equal, so that two sends under one id are the same send.
local function is_same(a, b)
  for _, name in ipairs({ 'type', 'key', 'content-type', 'body' }) do
    if get(a, name) ~= get(b, name) then return false end
  end
  return true
end

-- Returns a due time as a score, and exactly as text. `a` is an absolute time, `r` is relative to
-- now.
local function resolve(mode, value)
  local number = tonumber(value)
  if mode == 'n' or (mode == 'r' and number <= 0) then return now, nil end
  if mode == 'r' then
    if number >= LARGEST - later then return LARGEST, '9223372036854775807' end
    return later + number, nil
  end
  if number > LARGEST then return LARGEST, value end
  return math.max(number, now), nil
end

-------------------------------------------------------------------------------------------------- repeated calls

-- Returns the last call of a lane and its answer.
local function last_call(of)
  local found = call('HGET', S.calls, of)
  if not found then return nil end
  local number, answer = string.match(found, '^(%d+)\n(.*)$')
  return number, cmsgpack.unpack(answer)
end

local function remember_call(of, number, answer)
  call('HSET', S.calls, of, number .. '\n' .. cmsgpack.pack(answer))
  -- The calls of a link whose process has ended expire.
  call('PEXPIRE', S.calls, 3600000)
end

-- Returns the answer of this call if it was made before. A call that arrives after the next one of
-- its lane is refused.
local function answered()
  local number, answer = last_call(lane)
  if number == serial then return answer end
  if number and tonumber(number) > tonumber(serial) then return { 'outdated' } end
end

-- Ends a script that must not run twice.
local function answer_once(with)
  remember_call(lane, serial, with)
  return with
end

---------------------------------------------------------------------------------------------------- the ledger

local function home(t, name, item)
  return (t.dead and get(item, 'from')) or (t.topic .. '/' .. (name or ''))
end

local function shown(t, state)
  return t.dead and 'dead' or state
end

local function count(of, state, by)
  if not has_ledger then return end
  local field = of .. '|' .. state
  counted[field] = (counted[field] or 0) + by
end

local function line(at, state, by, item, error)
  local handled, failed = whole(get(item, 'handled'), 9) or 0, whole(get(item, 'failed'), 9) or 0
  return cjson.encode({ at, state, by or '', handled, failed, error or '' }) .. '\n'
end

-- Records the state of an item. Its other fields describe how it was reached, as long as nothing
-- else happened.
local function became(item, before, at, state, by, error)
  if not has_ledger then return end
  local past = get(item, 'past') or line(whole(get(item, 'born'), 15) or now, before or state, nil, item, nil)
  past = past .. line(at, state, by, item, error)
  if #past > 16384 then past = string.sub(past, string.find(past, '\n', #past - 8192, true) + 1) end
  put(item, 'past', past)
end

-- Assigns a unique number to a new item.
local function enroll(item)
  if not has_ledger then return end
  put(item, 'n', text(call('INCR', S.seq)))
  if not whole(get(item, 'born'), 15) then put(item, 'born', text(now)) end
end

local function list(item, id)
  if not has_ledger then return end
  local member = id .. '/' .. get(item, 'n')
  call('ZADD', S.made, whole(get(item, 'born'), 15) or now, member)
  listed[#listed + 1] = member
end

local function words_with(words, word) return words and (words .. ' ' .. word) or word end

local function words_without(words, word)
  local kept = {}
  for other in string.gmatch(words or '', '%S+') do
    if other ~= word then kept[#kept + 1] = other end
  end
  return #kept > 0 and table.concat(kept, ' ') or nil
end

local function add_word(key, field, word)
  call('HSET', key, field, words_with(call('HGET', key, field), word))
end

local function remove_word(key, field, word)
  local kept = words_without(call('HGET', key, field), word)
  if kept then call('HSET', key, field, kept) else call('HDEL', key, field) end
end

-- Records where an item that is not pending is stored.
local function locate(item, id, where)
  if not has_ledger then return end
  local n = get(item, 'n')
  if call('HSET', S.at, n, where) == 1 then add_word(S.ids, id, n) end
end

local function unlocate(item, id)
  if not has_ledger then return end
  local n = get(item, 'n')
  if n and call('HDEL', S.at, n) == 1 then remove_word(S.ids, id, n) end
end

-- Removes an item. Only the record of its id remains.
local function forget(item, id)
  if not has_ledger or not get(item, 'n') then return end
  unlocate(item, id)
  call('ZREM', S.made, id .. '/' .. get(item, 'n'))
end

-- Keeps a finished item for a while.
local function finish(item, id, of, state, result)
  if not has_ledger or not get(item, 'n') then return end
  if keep_done <= 0 then return forget(item, id) end
  put(item, 'id', id)
  put(item, 'state', state)
  put(item, 'home', of)
  put(item, 'ended', text(now))
  if result then put(item, 'result', result) end
  local n = get(item, 'n')
  call('HSET', S.over, n, cmsgpack.pack(item))
  call('ZADD', S.ended, now, n)
  locate(item, id, 'o')
  count(of, state, 1)
end

---------------------------------------------------------------------------------------------------- known names

local function remember(t, name, due, content)
  if keep_ids <= 0 then return end
  if content or call('HSETNX', t.known, name, (due or '') .. ' ') == 0 then
    -- What the content was is not forgotten by one who does not know.
    content = content or string.match(call('HGET', t.known, name) or '', ' !*(.*)$') or ''
    call('HSET', t.known, name, (due or '') .. ' ' .. content)
  end
  call('ZADD', t.forget, now + keep_ids, name)
end

-- Whether the message of a name, or of a message id, has a record that is not pending.
local function has_record(name)
  if not has_ledger then return false end
  -- The id of another program's message may look like a name.
  local id = string.match(name, '^(.*)@[^@]*$')
  return call('HEXISTS', S.ids, name) == 1 or (id and call('HEXISTS', S.ids, id) == 1)
end

-- Returns the recorded due time and content of a name. Either may be empty.
local function known(t, name)
  local found = call('HGET', t.known, name)
  if not found then return nil end
  local until_then = call('ZSCORE', t.forget, name)
  if until_then and tonumber(until_then) <= now and not has_record(name) then return nil end
  return string.match(found, '^(%S*) (.*)$')
end

-- Returns the answer to a send with this record of its name. A content that starts with `!` is
-- being sent to another broker with an unknown outcome: the same content is sent again.
local function answer_known(due, first, content)
  if not first or first == '' then return nil end
  local sending, its = string.match(first, '^(!*)(.*)$')
  if sending ~= '' and its == content then return nil end
  return { first == content and 'duplicate' or 'conflict', due }
end

---------------------------------------------------------------------------------------------- pending messages

local earliest = {}

-- Returns the name of a plain publish. It follows from the message id; all other names of a message
-- are in `aliases`.
local function published(t, id) return id .. '@' .. t.topic end

-- Whether the entry of this name goes to a dead-letter topic, directly or through a forwarder.
local function is_dead_letter(name)
  local topic = string.match(name, '@([^@/#~+&]*)[^@]*$') or ''
  return string.find(topic, '%.dlq$') ~= nil or string.find(topic, '%.invalid$') ~= nil
end

-- Whether it is too late to cancel or reschedule the entry of this name: a dead letter, or a message that the forwarder may have
-- sent already.
local function is_too_late(name)
  return is_dead_letter(name) or string.match(name, '@[^@+]*%+doubt[^@]*$') ~= nil
end

-- The message id of an entry. A plain publish does not repeat it, and another program may have written an entry without one.
local function id_of(t, name, item)
  local id = get(item, 'id')
  if id then return id end
  local ending = published(t, '')
  return string.sub(name, -#ending) == ending and string.sub(name, 1, -#ending - 1) or name
end

-- Returns some of this message's names in `aliases`, after a given name.
local function aliases_of(t, id, after, most)
  local from = after == '' and '[' or '('
  local members = call('ZRANGEBYLEX', t.aliases, from .. id .. '\0' .. after, '(' .. id .. '\1', 'LIMIT', 0, most)
  for i, member in ipairs(members) do members[i] = string.sub(member, #id + 2) end
  return members
end

-- Returns all names under which entries of this message may be stored. One of them is the message
-- id, which another program may have chosen as a name.
local function names_of(t, id)
  local names = { published(t, id), id }
  for _, name in ipairs(aliases_of(t, id, '', -1)) do names[#names + 1] = name end
  return names
end

local function stored(t, name)
  local raw = call('HGET', t.waiting, name)
  return raw and unpack_item(raw)
end

-- Returns a name without an entry.
local function free_name(t, name)
  local free = name
  while call('HEXISTS', t.waiting, free) == 1 do free = name .. '&' .. text(call('INCR', S.seq)) end
  return free
end

-- Returns the name of a copy or of a moved message, and the entry that it replaces: an earlier copy
-- with the same content, because the settlement that made it is repeated. Every other entry stays.
local function name_of_copy(t, name, content, item)
  for _, own in ipairs({ name, name .. '&' .. content }) do
    local there = stored(t, own)
    if not there or (get(there, 'copy') and is_same(there, item)) then return own, there end
  end
  return free_name(t, name)
end

-- Stores an item until it is due. `id` is its message id.
local function wait(t, name, id, item, score, exact)
  local first = call('ZRANGE', t.due, 0, 0, 'WITHSCORES')
  if not first[2] or score < tonumber(first[2]) then earliest[t] = true end
  put(item, 'due', exact)
  if name == published(t, id) then
    put(item, 'id', nil)
  else
    put(item, 'id', id)
    call('ZADD', t.aliases, 0, id .. '\0' .. name)
  end
  call('HSET', t.waiting, name, cmsgpack.pack(item))
  call('ZADD', t.due, score, name)
end

-- Removes an item from the pending messages.
local function unwait(t, name)
  local item = stored(t, name)
  if not item then return nil end
  local id = id_of(t, name, item)
  call('HDEL', t.waiting, name)
  local score = call('ZSCORE', t.due, name)
  call('ZREM', t.due, name)
  call('ZREM', t.aliases, id .. '\0' .. name)
  put(item, 'id', id)
  return item, id, tonumber(score)
end

-- Ends every script that changes something: writes the counts, and signals an earlier due time to
-- waiting promoters.
local function conclude()
  for field, by in pairs(counted) do
    local is = by == 0 and 1 or redis.pcall('HINCRBY', S.tally, field, by)
    -- An invalid number was not written by Dwell.
    if type(is) == 'table' or is <= 0 then call('HDEL', S.tally, field) end
  end
  for t in pairs(earliest) do call('XADD', t.wake, 'MAXLEN', 1, '*', 'due', 'earlier') end
end

------------------------------------------------------------------------------------------------ ready messages

-- Adds an item to the stream of one subscription.
local function add(s, item, id)
  if has_ledger and not get(item, 'n') then
    -- It was stored without a ledger, or by another program.
    enroll(item)
    list(item, id)
  end
  local entry = call('XADD', s.ready, '*', unpack(item))
  if has_ledger then
    locate(item, id, 'r' .. s.t.topic .. '/' .. s.name .. '/' .. entry)
    count(home(s.t, s.name, item), shown(s.t, 'ready'), 1)
  end
end

-- Returns the destinations of a due message of this topic. `to` is a subscription, or empty for
-- all. Returns nil if the subscription does not exist.
local function destinations(t, to)
  if to == '' then return t.subs end
  local s = t.names[to]
  return s and { s } or nil
end

-- How long an item that could not be moved is left alone.
local ALONE = 60000

-- Stores an item that one subscription cannot accept now as pending for that subscription.
local function put_off(s, item, id)
  local t, due = s.t, get(item, 'due')
  local name = free_name(t, published(t, id) .. '/' .. s.name)
  item = copy(item)
  put(item, 'to', s.name)
  count(home(t, s.name, item), shown(t, 'scheduled'), 1)
  wait(t, name, id, item, now + ALONE, due)
end

-- Makes an item ready for these subscriptions. A message without a subscription is discarded and
-- counted.
local function deliver(t, subs, item, id)
  if #subs == 0 then
    call('HINCRBY', t.config, 'discarded', 1)
    if has_ledger then
      if keep_done > 0 then
        became(item, 'scheduled', now, 'discarded')
        finish(item, id, t.topic .. '/', 'discarded')
      else
        forget(item, id)
      end
    end
    return
  end
  -- All copies get their numbers before the first is added. If one number is not available, none is
  -- added.
  local copies = { item }
  for i = 2, #subs do
    copies[i] = item
    if has_ledger then
      copies[i] = copy(item)
      enroll(copies[i])
      list(copies[i], id)
    end
  end
  local missed, problem = {}, nil
  for i, s in ipairs(subs) do
    local is_added, why = pcall(add, s, copies[i], id)
    if not is_added then missed[#missed + 1], problem = i, why end
  end
  if #missed == #subs then error(problem, 0) end
  for _, i in ipairs(missed) do
    -- The other subscriptions have their copies, and must not receive another.
    warn(problem)
    put_off(subs[i], copies[i], id)
  end
end

-- Promotes the entry with this name.
local function fire(t, name, score, item)
  local id = id_of(t, name, item)
  put(item, 'id', id)
  local to, once, state = get(item, 'to') or '', get(item, 'once'), get(item, 'state') or 'scheduled'
  local due = get(item, 'due') or text(tonumber(score))
  -- Lookups by id also use the message id.
  if name ~= published(t, id) then remember(t, id, due) end
  remember(t, name, due, once and string.sub(once, 2))
  count(home(t, to, item), shown(t, state), -1)
  put(item, 'to', nil)
  put(item, 'once', nil)
  put(item, 'state', nil)
  put(item, 'copy', nil)
  put(item, 'due', due)
  became(item, shown(t, state), now, shown(t, 'ready'))
  -- Its subscription exists, because subscriptions are never removed.
  deliver(t, destinations(t, to) or {}, item, id)
  call('ZREM', t.aliases, id .. '\0' .. name)
end

-- The remaining work and bytes of this script, so that other clients do not wait long.
local left, bytes_left = 0, HEAVY

-- Does some of the work: `what` receives the maximum, and returns how much it did and whether there
-- is more. With large messages it ends with the one that exceeds the limit; at least one is always
-- processed.
local function some(what, of)
  local done, is_more = what(of, math.max(left, 10))
  left = left - done
  return is_more
end

-- Returns how many messages can go to all subscriptions of a topic within a limit.
local function share(t, most)
  return math.ceil(most / math.max(#t.subs, 1))
end

-- Promotes some of the due messages.
local function promote(t, most)
  most = share(t, most)
  local due = call('ZRANGEBYSCORE', t.due, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  local looked, gone = 0, {}
  while looked < #due / 2 and (looked == 0 or bytes_left > 0) do
    looked = looked + 1
    local name, score = due[2 * looked - 1], due[2 * looked]
    local raw = call('HGET', t.waiting, name)
    if not raw or safely(fire, t, name, score, unpack_item(raw)) then
      gone[#gone + 1] = name
    else
      call('ZADD', t.due, now + ALONE, name)
    end
    if raw then bytes_left = bytes_left - #raw * math.max(#t.subs, 1) end
  end
  if #gone > 0 then
    call('ZREM', t.due, unpack(gone))
    call('HDEL', t.waiting, unpack(gone))
  end
  return looked * math.max(#t.subs, 1), looked == most or looked < #due / 2
end

-- Returns the time until the next message is due, in milliseconds; -1 if none is pending.
local function until_next(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if not first[2] then return -1 end
  return math.max(0, tonumber(first[2]) - now)
end

-- Removes an entry from its stream, leased or not.
local function take_out(s, entry)
  call('XACK', s.ready, 'dwell', entry)
  call('XDEL', s.ready, entry)
  call('HDEL', s.held, entry)
  call('ZREM', s.leases, entry)
end

local function read_entry(s, entry)
  local found = call('XRANGE', s.ready, entry, entry)
  return found[1] and found[1][2]
end

-- Returns the fence, the consumer, the time and the worker of an entry in flight.
local function holder_of(s, entry)
  if not s then return nil end
  local held = call('HGET', s.held, entry)
  local is_read, of = pcall(cmsgpack.unpack, held or '')
  if not is_read or type(of) ~= 'table' then return nil end
  return of[1], of[2], tonumber(of[3]) or 0, of[4] or of[2]
end

-- Fields with a meaning, at any position among others.
local MEANINGFUL = {
  'id', 'x-dwell-id', 'to', 'delay', 'due', 'type', 'key', 'content-type', 'headers', 'body', 'handled', 'failed', 'n', 'born', 'tries',
  'past', 'from', 'first',
}

-- Limits an item of another program to the number of fields that a script can pass on.
local function passable(item)
  if #item <= 1000 then return item end
  local first = {}
  -- Dwell adds some fields.
  for i = 1, 900 do first[i] = item[i] end
  for _, name in ipairs(MEANINGFUL) do put(first, name, get(item, name)) end
  put(first, 'x-dwell-unreadable-headers', text(#item / 2 - 450) .. ' fields were left out')
  return first
end

-- Puts a delivery back unchanged. `is_counted` if its consumer did not release it.
local function put_back(s, entry, is_counted, by, error)
  local item = read_entry(s, entry)
  if not item then return take_out(s, entry) end
  bytes_left = bytes_left - size_of(item)
  item = passable(item)
  local id = get(item, 'id') or entry
  put(item, 'id', id)
  -- The identity of the message across redeliveries: see `Receipt::identity`.
  if not get(item, 'first') then put(item, 'first', entry) end
  if is_counted then put(item, 'tries', text((whole(get(item, 'tries'), 9) or 0) + 1)) end
  if not get(item, 'due') then put(item, 'due', string.match(entry, '^%d+')) end
  if has_ledger then
    local token, _, at, worker = holder_of(s, entry)
    if token then
      count(home(s.t, s.name, item), shown(s.t, 'processing'), -1)
      became(item, shown(s.t, 'ready'), at, shown(s.t, 'processing'), worker)
      became(item, nil, now, shown(s.t, 'ready'), by, error)
    else
      count(home(s.t, s.name, item), shown(s.t, 'ready'), -1)
    end
  end
  add(s, item, id)
  take_out(s, entry)
end

-- Recovers some deliveries with an expired lease. Each is as much work as promoting four messages,
-- so far fewer are recovered at a time: after a crash there may be very many, and the server must
-- stay responsive.
local function recover(s, most)
  most = math.ceil(most / 10)
  local expired = call('ZRANGEBYSCORE', s.leases, '-inf', now, 'LIMIT', 0, most)
  local looked = 0
  while looked < #expired and (looked == 0 or bytes_left > 0) do
    looked = looked + 1
    local entry = expired[looked]
    if not safely(put_back, s, entry, true) then call('ZADD', s.leases, now + ALONE, entry) end
  end
  return 10 * looked, looked == most or looked < #expired
end

-- Returns a time that another program has written, or why it is invalid.
local function foreign_time(item, name)
  local value = get(item, name)
  if not value then return nil end
  put(item, name, nil)
  if #value <= 19 and string.match(value, '^%d+$') then return tonumber(value) end
  return nil, '`' .. name .. '` is not a number of milliseconds'
end

-- Takes in a message from the stream of incoming messages of other programs. An unreadable message
-- becomes ready with its problem, so that it is rejected with the reason, and never handled too
-- early or by the wrong subscription.
local function take_one_in(t, entry, item)
  item = passable(item)
  local id = get(item, 'id') or get(item, 'x-dwell-id')
  if not id or id == '' then id = 'in-' .. entry end
  put(item, 'id', id)
  put(item, 'foreign', entry)
  for _, ours in ipairs({ 'n', 'born', 'past', 'tries', 'first', 'state', 'once', 'from', 'home', 'ended', 'result' }) do
    put(item, ours, nil)
  end
  local to = get(item, 'to') or ''
  local delay, no_delay = foreign_time(item, 'delay')
  local at, no_due = foreign_time(item, 'due')
  put(item, 'to', nil)
  local problem = no_delay or no_due or (delay and at and 'both `due` and `delay` are given: give one')
  for _, name in ipairs({ 'handled', 'failed' }) do
    local written = get(item, name)
    if written and not whole(written, 9) then problem = problem or '`' .. name .. '` is not a number' end
  end
  if not destinations(t, to) then
    problem = problem or ('there is no subscription `' .. string.sub(to, 1, 120) .. '` of this topic')
    to = ''
  end
  if problem then
    put(item, 'x-dwell-problem', problem)
    delay, at = nil, nil
  end
  enroll(item)
  list(item, id)
  local score, exact = now, nil
  if delay then
    score, exact = resolve('r', text(delay))
  elseif at then
    score, exact = resolve('a', text(at))
  end
  if score > now then
    if to ~= '' then put(item, 'to', to) end
    local name = free_name(t, published(t, id) .. (to ~= '' and '/' .. to or ''))
    count(home(t, to, item), shown(t, 'scheduled'), 1)
    wait(t, name, id, item, score, exact)
  else
    deliver(t, destinations(t, to), item, id)
  end
end

-- Last incoming entry when some of them could not be taken in. Waiting clients wait for later
-- entries.
local stuck_at = '0-0'
-- Maximum number of entries that may be skipped, so that they do not block the others.
local MOST_STUCK = 10

-- Takes in some entries, one by one, because their sizes are unknown. An entry that cannot be taken
-- in stays, and is retried.
local function take_in(t, most)
  most = share(t, most)
  local looked, stuck, from, is_more = 0, 0, '-', true
  while looked < most and (looked == 0 or bytes_left > 0) do
    local came = stuck < MOST_STUCK and call('XRANGE', t.incoming, from, '+', 'COUNT', 1)[1]
    if not came then
      is_more = false
      break
    end
    looked = looked + 1
    bytes_left = bytes_left - size_of(came[2]) * math.max(#t.subs, 1)
    if safely(take_one_in, t, came[1], came[2]) then
      call('XDEL', t.incoming, came[1])
    else
      stuck, from = stuck + 1, '(' .. came[1]
    end
  end
  if stuck > 0 then
    stuck_at = call('XREVRANGE', t.incoming, '+', '-', 'COUNT', 1)[1][1]
    -- If none could be taken in, there is no hurry.
    is_more = is_more and looked > stuck
  end
  return looked * math.max(#t.subs, 1), is_more
end
