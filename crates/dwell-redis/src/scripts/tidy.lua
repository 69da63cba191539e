-- Removes expired data in small steps: records of finished messages, ids, and dead consumers; and
-- releases deliveries that were read from a stream by hand. Arguments: maximum amount of work, idle
-- time of a dead consumer in milliseconds, idle time of a delivery without a lease in milliseconds,
-- and where to continue the search for these: stream and entry of each. Returns whether there is
-- more, and such pairs again.
local limit, idle, stray = tonumber(ARGV[A]), tonumber(ARGV[A + 1]), tonumber(ARGV[A + 2])
-- Maximum number of releases, each of which is a lot of work.
local room = math.ceil(limit / 10)
-- Maximum number of pages of deliveries to scan, in all subscriptions.
local pages = 5
local is_more = false
local behind, stopped = {}, {}
for a = A + 3, #ARGV, 2 do behind[ARGV[a]] = ARGV[a + 1] end
-- The first round scans everything, later ones only the rest.
local is_first = #ARGV < A + 3

local function is_pending(id)
  for _, t in ipairs(T) do
    for _, name in ipairs(names_of(t, id)) do
      if call('HEXISTS', t.waiting, name) == 1 then return true end
    end
  end
end

local over = call('ZRANGEBYSCORE', S.ended, '-inf', now - keep_done, 'LIMIT', 0, limit)
local forgotten = 0
for _, n in ipairs(over) do
  if bytes_left <= 0 then break end
  forgotten = forgotten + 1
  local raw = call('HGET', S.over, n)
  if raw then
    bytes_left = bytes_left - #raw
    local item = unpack_item(raw)
    local of, state, id = get(item, 'home'), get(item, 'state'), get(item, 'id')
    if of and state and id then
      count(of, state, -1)
      forget(item, id)
      -- An id that was remembered longer because of this record expires with it, unless another
      -- message has it.
      if keep_done >= keep_ids and call('HEXISTS', S.ids, id) == 0 and not is_pending(id) then
        for _, t in ipairs(T) do
          local names = { published(t, id), id }
          for _, s in ipairs(t.subs) do names[#names + 1] = names[1] .. '/' .. s.name end
          for _, name in ipairs(names) do call('ZADD', t.forget, 'XX', 'LT', now, name) end
        end
      end
    end
  end
  call('ZREM', S.ended, n)
  call('HDEL', S.over, n)
end
is_more = forgotten == limit or forgotten < #over

for _, t in ipairs(T) do
  local old = call('ZRANGEBYSCORE', t.forget, '-inf', now, 'LIMIT', 0, limit)
  for _, name in ipairs(old) do
    if has_record(name) then
      call('ZADD', t.forget, now + keep_ids, name)
    else
      call('ZREM', t.forget, name)
      call('HDEL', t.known, name)
    end
  end
  is_more = is_more or #old == limit
  for _, s in ipairs(t.subs) do
    -- Read without a claim, so that a leased delivery stays with its consumer, however long its
    -- lease is renewed.
    local from = behind[s.ready] or (is_first and '-')
    local consumers = from and redis.pcall('XINFO', 'CONSUMERS', s.ready, 'dwell')
    if consumers and not consumers.err then
      while from and pages > 0 and room > 0 and bytes_left > 0 do
        -- Without `IDLE`, because the server would scan all of them for the first.
        local found = call('XPENDING', s.ready, 'dwell', from, '+', limit)
        for _, pending in ipairs(found) do
          if pending[3] >= stray and call('HEXISTS', s.held, pending[1]) == 0 then
            if room == 0 or bytes_left <= 0 then break end
            room = room - 1
            put_back(s, pending[1], true)
          end
          from = '(' .. pending[1]
        end
        pages = pages - 1
        if #found < limit and room > 0 and bytes_left > 0 then from = nil end
      end
      if from then
        stopped[#stopped + 1] = s.ready
        stopped[#stopped + 1] = from
      end
      for _, consumer in ipairs(consumers) do
        -- name, its name, pending, how many, idle, how long
        if consumer[4] == 0 and consumer[6] > idle then
          call('XGROUP', 'DELCONSUMER', s.ready, 'dwell', consumer[2])
        end
      end
    end
  end
end
conclude()
return { 'ok', (is_more or #stopped > 0) and 1 or 0, stopped }
