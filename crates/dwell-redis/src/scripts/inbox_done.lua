-- A message was handled: that is known for so many milliseconds.
redis.call('SET', KEYS[1], 'done', 'PX', ARGV[1])
return 'ok'
