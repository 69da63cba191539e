-- What every script starts with: the time, the keys by name, and the few steps that all of them are made of.
--
-- An item is a message with its past, as a flat list of names and values. It lies in exactly one place: in the hash of
-- what waits, in the stream of one subscription, or in the hash of what is over.
local call = redis.call
local LARGEST = 9007199254740991
-- How many bytes of messages are shown at once, beside the last one; and how many are moved, which takes longer.
local ENOUGH, HEAVY = 1048576, 262144

local seconds, micros
if ARGV[1] == '' then
  local time = call('TIME')
  seconds, micros = tonumber(time[1]), tonumber(time[2])
else
  seconds, micros = math.floor(tonumber(ARGV[1]) / 1000), (tonumber(ARGV[1]) % 1000) * 1000
end
-- Rounded down to tell what is due, and up to resolve a delay: never early.
local now = seconds * 1000 + math.floor(micros / 1000)
local later = seconds * 1000 + math.ceil(micros / 1000)

local has_ledger = ARGV[2] == '1'
local keep_ids, keep_done = tonumber(ARGV[3]), tonumber(ARGV[4])

local S = {
  seq = KEYS[1], made = KEYS[2], at = KEYS[3], ids = KEYS[4], over = KEYS[5], ended = KEYS[6], tally = KEYS[7],
  calls = KEYS[8],
}
-- Which call this is of the link that `calls` belongs to; empty where it does no harm if it comes twice.
local lane, serial = ARGV[6], ARGV[7]
local T, by_topic = {}, {}
-- The first argument of the script itself.
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

-- A script that fails in the middle has done half of its work: what could make it fail is looked for first.
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

-- A number that anybody may have written, if it is one of so many digits.
local function whole(value, digits)
  return value and #value <= digits and string.match(value, '^%d+$') and tonumber(value)
end

-- Names and values that a script can pass on.
local function is_item(list)
  if type(list) ~= 'table' or #list == 0 or #list % 2 == 1 or #list > 2000 then return false end
  for i = 1, #list do
    if type(list[i]) ~= 'string' then return false end
  end
  return true
end

-- What another program has written there, and is no item, is a message without anything but a body.
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

-- Counted together, and written when the script is done; and what was added to the list of records.
local counted, listed = {}, {}

-- Does something with one message of many. If it fails, because of what another program has written, that one stays where it was, and
-- the others are not concerned: whatever is added comes before what is removed, and what was counted or listed is taken back.
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

-- The same content: what makes two sends under one id the same send.
local function is_same(a, b)
  for _, name in ipairs({ 'type', 'key', 'content-type', 'body' }) do
    if get(a, name) ~= get(b, name) then return false end
  end
  return true
end

-- When something is due: as a score, and exactly, in words. `a` is at a time, `r` is relative to now.
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

------------------------------------------------------------------------------------------- calls that come twice

-- The last call in a lane, and how it was answered.
local function last_call(of)
  local found = call('HGET', S.calls, of)
  if not found then return nil end
  local number, answer = string.match(found, '^(%d+)\n(.*)$')
  return number, cmsgpack.unpack(answer)
end

local function remember_call(of, number, answer)
  call('HSET', S.calls, of, number .. '\n' .. cmsgpack.pack(answer))
  -- The link of a process that is gone leaves nothing behind.
  call('PEXPIRE', S.calls, 3600000)
end

-- How this call was answered if it has come before. One that was given up, and comes later than the next of its lane, is refused.
local function answered()
  local number, answer = last_call(lane)
  if number == serial then return answer end
  if number and tonumber(number) > tonumber(serial) then return { 'outdated' } end
end

-- The end of a script that must not run twice.
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

-- Writes into an item what it became. How it came to be is told by its other fields as long as nothing else happened.
local function became(item, before, at, state, by, error)
  if not has_ledger then return end
  local past = get(item, 'past') or line(whole(get(item, 'born'), 15) or now, before or state, nil, item, nil)
  past = past .. line(at, state, by, item, error)
  if #past > 16384 then past = string.sub(past, string.find(past, '\n', #past - 8192, true) + 1) end
  put(item, 'past', past)
end

-- A number of its own for a new item.
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

-- Tells where an item lies that does not wait.
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

-- Nothing is left of an item but what is remembered of its id.
local function forget(item, id)
  if not has_ledger or not get(item, 'n') then return end
  unlocate(item, id)
  call('ZREM', S.made, id .. '/' .. get(item, 'n'))
end

-- What is over is kept for a while.
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

-------------------------------------------------------------------------------------------------- what is known

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

-- What is known about a name: when it was due, and its content; either may be empty.
local function known(t, name)
  local found = call('HGET', t.known, name)
  if not found then return nil end
  local until_then = call('ZSCORE', t.forget, name)
  if until_then and tonumber(until_then) <= now and not has_record(name) then return nil end
  return string.match(found, '^(%S*) (.*)$')
end

-- What a send is answered if this is known about its name. A content that starts with `!` is being sent to another broker, and
-- nobody knows yet whether that succeeded: the same content is sent again. With `!!`, an earlier send of it is in doubt as well.
local function answer_known(due, first, content)
  if not first or first == '' then return nil end
  local sending, its = string.match(first, '^(!*)(.*)$')
  if sending ~= '' and its == content then return nil end
  return { first == content and 'duplicate' or 'conflict', due }
end

---------------------------------------------------------------------------------------------------- what waits

local earliest = {}

-- The name of a plain publish. It is found from the message id; all other names of a message are in `aliases`.
local function published(t, id) return id .. '@' .. t.topic end

-- Whether the entry of this name goes to a dead-letter topic, directly or by way of a forwarder.
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

-- Some of the names in `aliases` of this message, behind one.
local function aliases_of(t, id, after, most)
  local from = after == '' and '[' or '('
  local members = call('ZRANGEBYLEX', t.aliases, from .. id .. '\0' .. after, '(' .. id .. '\1', 'LIMIT', 0, most)
  for i, member in ipairs(members) do members[i] = string.sub(member, #id + 2) end
  return members
end

-- All names under which entries of this message may be stored. The message id is one of them: another program may have chosen it.
local function names_of(t, id)
  local names = { published(t, id), id }
  for _, name in ipairs(aliases_of(t, id, '', -1)) do names[#names + 1] = name end
  return names
end

local function stored(t, name)
  local raw = call('HGET', t.waiting, name)
  return raw and unpack_item(raw)
end

-- A name without an entry.
local function free_name(t, name)
  local free = name
  while call('HEXISTS', t.waiting, free) == 1 do free = name .. '&' .. text(call('INCR', S.seq)) end
  return free
end

-- The name of a copy or of a moved message, and the entry that it replaces: an earlier copy of the same content, because the
-- settlement that made it is repeated. Every other entry stays.
local function name_of_copy(t, name, content, item)
  for _, own in ipairs({ name, name .. '&' .. content }) do
    local there = stored(t, own)
    if not there or (get(there, 'copy') and is_same(there, item)) then return own, there end
  end
  return free_name(t, name)
end

-- Stores an item until it is due. `id` is that of its message.
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

-- Takes an item from what waits.
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

-- The end of every script that changes something: the counts are written, and whoever sleeps until the next due time is told
-- of an earlier one.
local function conclude()
  for field, by in pairs(counted) do
    local is = by == 0 and 1 or redis.pcall('HINCRBY', S.tally, field, by)
    -- What is no number was not written by us.
    if type(is) == 'table' or is <= 0 then call('HDEL', S.tally, field) end
  end
  for t in pairs(earliest) do call('XADD', t.wake, 'MAXLEN', 1, '*', 'due', 'earlier') end
end

------------------------------------------------------------------------------------------------- what is ready

-- Adds an item to the stream of one subscription.
local function add(s, item, id)
  if has_ledger and not get(item, 'n') then
    -- It came while there was no ledger, or another program has put it there.
    enroll(item)
    list(item, id)
  end
  local entry = call('XADD', s.ready, '*', unpack(item))
  if has_ledger then
    locate(item, id, 'r' .. s.t.topic .. '/' .. s.name .. '/' .. entry)
    count(home(s.t, s.name, item), shown(s.t, 'ready'), 1)
  end
end

-- Where something for this topic goes that is due: `to` is a subscription, or empty for all. Nil if there is none of
-- that name.
local function destinations(t, to)
  if to == '' then return t.subs end
  local s = t.names[to]
  return s and { s } or nil
end

-- For how long one is left alone that could not be moved.
local ALONE = 60000

-- What one subscription cannot take now waits for that one.
local function put_off(s, item, id)
  local t, due = s.t, get(item, 'due')
  local name = free_name(t, published(t, id) .. '/' .. s.name)
  item = copy(item)
  put(item, 'to', s.name)
  count(home(t, s.name, item), shown(t, 'scheduled'), 1)
  wait(t, name, id, item, now + ALONE, due)
end

-- Makes an item ready for these. What nobody wants is dropped, and counted.
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
  -- All have their numbers before the first is added: where one cannot be had, none is.
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
    -- The others have theirs, and must not get it again.
    warn(problem)
    put_off(subs[i], copies[i], id)
  end
end

-- What has waited under this name is due.
local function fire(t, name, score, item)
  local id = id_of(t, name, item)
  put(item, 'id', id)
  local to, once, state = get(item, 'to') or '', get(item, 'once'), get(item, 'state') or 'scheduled'
  local due = get(item, 'due') or text(tonumber(score))
  -- By-id calls look for the message id, too.
  if name ~= published(t, id) then remember(t, id, due) end
  remember(t, name, due, once and string.sub(once, 2))
  count(home(t, to, item), shown(t, state), -1)
  put(item, 'to', nil)
  put(item, 'once', nil)
  put(item, 'state', nil)
  put(item, 'copy', nil)
  put(item, 'due', due)
  became(item, shown(t, state), now, shown(t, 'ready'))
  -- Its subscription is there: subscriptions are never removed.
  deliver(t, destinations(t, to) or {}, item, id)
  call('ZREM', t.aliases, id .. '\0' .. name)
end

-- How much may still be done in this script, and how many bytes of messages may be moved. Whoever waits for the server meanwhile does
-- not wait long.
local left, bytes_left = 0, HEAVY

-- Does some of what there is to do: `what` is told how much at most, and says how much it did and whether there is more. Where
-- messages are large, it ends with the one that is too much; one is always done.
local function some(what, of)
  local done, is_more = what(of, math.max(left, 10))
  left = left - done
  return is_more
end

-- How many go to all subscriptions of a topic, where so much may be done.
local function share(t, most)
  return math.ceil(most / math.max(#t.subs, 1))
end

-- Makes some of what is due ready.
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

-- How long until the next is due, in milliseconds; -1 if nothing waits.
local function until_next(key)
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if not first[2] then return -1 end
  return math.max(0, tonumber(first[2]) - now)
end

-- Takes an entry out of its stream, whoever has it.
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

-- The fence, the consumer, the time and the worker of an entry in flight.
-- Nobody holds a delivery of a subscription that does not exist.
local function holder_of(s, entry)
  if not s then return nil end
  local held = call('HGET', s.held, entry)
  local is_read, of = pcall(cmsgpack.unpack, held or '')
  if not is_read or type(of) ~= 'table' then return nil end
  return of[1], of[2], tonumber(of[3]) or 0, of[4] or of[2]
end

-- Fields that mean something to us, wherever among many others they stand.
local MEANINGFUL = {
  'id', 'x-dwell-id', 'to', 'delay', 'due', 'type', 'key', 'content-type', 'headers', 'body', 'handled', 'failed', 'n', 'born', 'tries',
  'past', 'from', 'first',
}

-- What another program has written may have more fields than a script can pass on.
local function passable(item)
  if #item <= 1000 then return item end
  local first = {}
  -- Some of ours come in addition.
  for i = 1, 900 do first[i] = item[i] end
  for _, name in ipairs(MEANINGFUL) do put(first, name, get(item, name)) end
  put(first, 'x-dwell-unreadable-headers', text(#item / 2 - 450) .. ' fields were left out')
  return first
end

-- Puts back what somebody held, as it came. `is_counted` if that was not by his own will.
local function put_back(s, entry, is_counted, by, error)
  local item = read_entry(s, entry)
  if not item then return take_out(s, entry) end
  bytes_left = bytes_left - size_of(item)
  item = passable(item)
  local id = get(item, 'id') or entry
  put(item, 'id', id)
  -- What identifies it however often it is put back: see `Receipt::identity`.
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

-- Gives back some of what has run out. Each is as much work as making four others ready; and far fewer at a time, so that a
-- server that is slow for a moment is still not away for long: dead workers have left a great many behind.
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

-- A time that another program has written, or why it is none.
local function foreign_time(item, name)
  local value = get(item, name)
  if not value then return nil end
  put(item, name, nil)
  if #value <= 19 and string.match(value, '^%d+$') then return tonumber(value) end
  return nil, '`' .. name .. '` is not a number of milliseconds'
end

-- Takes in what another program has put into the stream of what comes in. What cannot be read becomes ready as such, so that it is
-- given up with the reason, and never handled too early or by somebody else.
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

-- The last that came in while some of it could not be taken in: whoever waits for more waits for what comes behind it.
local stuck_at = '0-0'
-- So many that cannot be taken in hold up nobody.
local MOST_STUCK = 10

-- Takes some of that in, one by one: nobody knows before how large they are. What cannot be taken in stays there, and is tried again.
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
    -- Where nothing could be, there is no hurry.
    is_more = is_more and looked > stuck
  end
  return looked * math.max(#t.subs, 1), is_more
end
