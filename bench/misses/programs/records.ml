(* Records in a table: made, walked, looked up unevenly, replaced. *)
type item = { i : int; text : string; more : int array }

let () =
  let n = int_of_string Sys.argv.(1) and state = ref 1 and sum = ref 0 in
  let dice () = state := (!state * 1103515245 + 12345) land 0x7fffffff; (!state lsr 8) mod n in
  let skewed () = min (dice ()) (min (dice ()) (dice ())) in
  let key i = "key " ^ string_of_int i in
  let of_key = Hashtbl.create 1024 in
  let text what i = String.concat "" (List.init 3 (fun _ -> what ^ string_of_int i ^ " ")) in
  for i = 0 to n - 1 do Hashtbl.replace of_key (key i) { i; text = text "value of " i; more = [| i + 1; i + 2 |] } done;
  Hashtbl.iter (fun _ item -> sum := !sum + item.i + String.length item.text) of_key;
  for _ = 1 to n / 2 do sum := !sum + (Hashtbl.find of_key (key (skewed ()))).more.(1) done;
  for _ = 1 to n / 4 do
    let i = skewed () in
    Hashtbl.replace of_key (key i) { i; text = text "new value " i; more = [| i; i + 2 |] }
  done;
  print_int !sum
