-- Claims a message for one subscription. Arguments: fence and lease in milliseconds. The value is a
-- fence, or `done`.
local found = redis.call('GET', KEYS[1])
if found == 'done' then return 'done' end
if found and found ~= ARGV[1] then return 'busy' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 'new'
