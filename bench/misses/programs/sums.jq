group_by(.kind) | map({kind: .[0].kind, n: length, sum: (map(.value) | add)}) | sort_by(.sum) | .[0:5]
