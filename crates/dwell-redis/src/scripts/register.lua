-- Registers a bucket of a topic, or that it must be scanned earlier. Keys: the register, the stream
-- of signals, and the settings. Arguments: the bucket, and the time of the first scan. Returns
-- `ok`, or `none` without any effect if the topic does not exist.
local call = redis.call
for k, type in ipairs({ 'zset', 'stream', 'hash' }) do
  local is = call('TYPE', KEYS[k])['ok']
  if is ~= type and is ~= 'none' then return { err = 'WRONGTYPE ' .. KEYS[k] .. ' is not a ' .. type } end
end
if call('HEXISTS', KEYS[3], 'version') == 0 then return 'none' end
if call('ZADD', KEYS[1], 'LT', 'CH', ARGV[2], ARGV[1]) == 1 then
  call('XADD', KEYS[2], 'MAXLEN', 1, '*', 'due', 'bucket')
end
-- Every client of the topic is informed, even if its URL does not set `shards`.
if call('HSETNX', KEYS[3], 'spread', '1') == 1 then call('HINCRBY', KEYS[3], 'version', 1) end
return 'ok'
