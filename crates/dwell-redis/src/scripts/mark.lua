-- A write that replicas are waited for: all that was written before has come to them when it has.
redis.call('SET', KEYS[1], '', 'PX', 60000)
return 'ok'
