# Runs the lines with `curl` at the head of an example as people type them, and holds the answers against what stands beside them.
# Arguments: the program, and its source. It works in the directory in which it is started.
set -euo pipefail
"$1" serve memory:// 127.0.0.1:0 >served 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
until grep -q listening served; do
  kill -0 "$server" 2>/dev/null || { cat served; exit 1; }
  sleep 0.05
done
# On a free port, and not on the one that the lines name.
port=$(sed -n 's/.*listening on .*:\([0-9]*\)$/\1/p' served)

# Four pixels by three.
base64 -d >photo.jpg <<<'iVBORw0KGgoAAAANSUhEUgAAAAQAAAADCAIAAAA7ljmRAAAAEElEQVR4nGPgEpGDIwacHAA2DwLRfmhzowAAAABJRU5ErkJggg=='

id= count=0
ask() { answer=$(eval "$command -sSf"); }
while IFS= read -r line; do
  command=${line%%  #*} expected=
  if [[ $line == *'  # '* ]]; then expected=${line##*  # }; fi
  expected=${expected%%,*} expected=${expected#\{} expected=${expected%\}}
  command=${command//:3000/:$port} command=${command//\/ID//$id} expected=${expected//ID/$id}
  echo "$command"
  # What is asked for may take a moment; what is done is done once.
  tries=100
  if [[ $command == *' -i '* || $command == *' -X '* ]]; then tries=1; fi
  until ask && grep -qF -- "$expected" <<<"$answer"; do
    tries=$((tries - 1))
    if [[ $tries -le 0 ]]; then echo "not \`$expected\`: $answer"; exit 1; fi
    sleep 0.1
  done
  if [[ $command == *Idempotency-Key* ]]; then
    first=$(tr -d '\r' <<<"$answer" | sed -n 's/^location: //Ip')
    grep -q '^HTTP/1.1 202' <<<"$answer"
    ask
    grep -q '^HTTP/1.1 200' <<<"$answer"
    [[ $first == "$(tr -d '\r' <<<"$answer" | sed -n 's/^location: //Ip')" ]]
  fi
  location=$(tr -d '\r' <<<"$answer" | sed -n 's,^location: /v1/jobs/,,Ip')
  if [[ -n $location ]]; then id=$location; fi
  count=$((count + 1))
done < <(sed -n 's,^//! \(curl .*\)$,\1,p' "$2")
file=$(head -c 4 small.png | tail -c 3)
[[ $file == PNG ]]
echo "$count lines"
[[ $count -ge 7 ]]
