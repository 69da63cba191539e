-- Writes the settings and new subscriptions of a topic, if no other client was faster. Keys:
-- settings, tally, and the streams, leases and holders of the default subscription and of the one
-- that adopts its messages. Arguments: topic, version, keep, declared, adopter, layout, ledger, and
-- then name and settings of each new or changed subscription. Returns `ok` or `reload`.
local call = redis.call
local config, topic = KEYS[1], ARGV[1]
if (call('HGET', config, 'version') or '0') ~= ARGV[2] then return 'reload' end
-- The layout and the ledger setting stay as the first client has set them.
call('HSETNX', config, 'layout', ARGV[6])
-- A topic of an earlier version with counts has a ledger, whatever the first client requests. The
-- client is informed.
local is_old = ARGV[2] ~= '0' and call('HEXISTS', config, 'ledger') == 0
if is_old and ARGV[7] ~= '1' and call('EXISTS', KEYS[2]) == 1 then
  call('HSET', config, 'ledger', '1')
  call('HINCRBY', config, 'version', 1)
  return 'reload'
end
call('HSET', config, 'topic', topic, 'keep', ARGV[3], 'declared', ARGV[4])
-- Messages that were kept stay until a subscription adopts them, also if the topic discards later ones.
if ARGV[3] == '1' then call('HSET', config, 'kept', '1') end
call('HSETNX', config, 'ledger', ARGV[7])
-- The versions of a topic that is created again must differ from the earlier ones.
if ARGV[2] == '0' then
  local time = call('TIME')
  call('HSET', config, 'version', string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])))
else
  call('HINCRBY', config, 'version', 1)
end
for a = 8, #ARGV, 2 do call('HSET', config, 'subscription:' .. ARGV[a], ARGV[a + 1]) end
local adopter = ARGV[5]
if adopter ~= '' then
  call('HSET', config, 'adopter', adopter)
  for k = 3, 5 do
    if call('EXISTS', KEYS[k]) == 1 then call('RENAME', KEYS[k], KEYS[k + 3]) end
  end
  local counts = call('HGETALL', KEYS[2])
  local from = topic .. '/' .. topic .. '|'
  for i = 1, #counts, 2 do
    if string.sub(counts[i], 1, #from) == from then
      call('HDEL', KEYS[2], counts[i])
      call('HINCRBY', KEYS[2], topic .. '/' .. adopter .. '|' .. string.sub(counts[i], #from + 1), counts[i + 1])
    end
  end
end
return 'ok'
