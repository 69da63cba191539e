-- Returns the buckets of a topic to scan now, the time until the next one in milliseconds (-1 for
-- never), and the last signal. Keys: the register, and the stream of signals. Argument: how long
-- ahead to scan, in milliseconds.
local call = redis.call
local time = call('TIME')
local limit = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
local open = call('ZRANGEBYSCORE', KEYS[1], '-inf', limit)
local after = call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', limit), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local signal = call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
return { open, after[2] and math.ceil(after[2] - limit) or -1, signal[1] and signal[1][1] or '0-0' }
