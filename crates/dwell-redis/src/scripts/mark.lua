-- A write for `WAIT`: when replicas have it, they have all earlier writes.
redis.call('SET', KEYS[1], '', 'PX', 60000)
return 'ok'
