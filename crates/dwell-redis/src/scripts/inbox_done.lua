-- Records for this number of milliseconds that a message was handled.
redis.call('SET', KEYS[1], 'done', 'PX', ARGV[1])
return 'ok'
