(* OCaml: a balanced map of strings that is changed without changing it; older versions of it stay in use for a while.

   maps KEYS CHANGES: prints a sum that depends on the arguments alone. *)
module Names = Map.Make (String)

let state = ref 12345

let below n =
  state := !state * 16807 mod 2147483647;
  !state mod n

let () =
  let keys = int_of_string Sys.argv.(1) and changes = int_of_string Sys.argv.(2) in
  let name () = Printf.sprintf "name-%d" (below keys) in
  let map = ref Names.empty in
  for i = 1 to keys do
    map := Names.add (name ()) [ i; below 100 ] !map
  done;
  let versions = Array.make 16 !map in
  for i = 1 to changes do
    map := Names.add (name ()) [ i ] (Names.remove (name ()) !map);
    if i mod (changes / 64) = 0 then versions.(below 16) <- !map
  done;
  let sum_of map = Names.fold (fun key values sum -> ((sum * 31) + String.length key + List.hd values) mod 1000000007) map 0 in
  let sum = Array.fold_left (fun sum map -> (sum + sum_of map) mod 1000000007) 0 versions in
  Printf.printf "%d names, %d\n" (Names.cardinal !map) sum
