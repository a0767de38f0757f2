#!/bin/sh
# Programs that Ebb cannot manage, started by one that it does: mixed.sh DIRECTORY PROGRAM...
# The first holds memory beside a sibling that Ebb does manage; the others run one after the other, then.
cd "$1" || exit 9
shift
/usr/bin/python3 "$SIBLING" "$SIBLING_MIB" . & sibling=$!
"$1" "$STATIC_MIB" . & holder=$!
shift
wait $holder || exit 11
wait $sibling || exit 12
for program; do
  "$program" || exit 13
done
echo done
