%% Erlang: processes with heaps of their own that keep maps, and send each other lists and binaries.
%%
%% escript processes.escript PROCESSES ENTRIES ROUNDS: prints a sum that depends on the arguments alone.
-mode(compile).

main(Arguments) ->
    [Processes, Entries, Rounds] = [list_to_integer(A) || A <- Arguments],
    Self = self(),
    All = [spawn_link(fun() -> keeper(Nr, Entries, Self) end) || Nr <- lists:seq(1, Processes)],
    Sum = lists:foldl(fun(Round, Sum) -> (Sum * 31 + round_of(All, Round)) rem 1000000007 end, 0, lists:seq(1, Rounds)),
    io:format("~b~n", [Sum]).

round_of(All, Round) ->
    [Keeper ! {change, Round} || Keeper <- All],
    lists:sum([receive {Keeper, List, Size} -> length(List) * 7 + Size end || Keeper <- All]).

keeper(Nr, Entries, Main) ->
    loop(maps:from_list([{Key, entry(Key, Nr)} || Key <- lists:seq(1, Entries)]), Entries, Main).

entry(Key, Round) ->
    {Key, [Key * Round rem 101, Round], integer_to_list(Key * Round)}.

loop(Map, Entries, Main) ->
    receive
        {change, Round} ->
            Changed = maps:map(fun(Key, Old) when (Key + Round) rem 4 =:= 0 -> entry(Key + element(1, Old), Round); (_, Old) -> Old end, Map),
            List = [Text || {_, _, Text} <- maps:values(Changed), length(Text) > 3],
            Main ! {self(), lists:sublist(List, 1000), lists:sum([length(Text) || Text <- List]) rem 1000},
            loop(Changed, Entries, Main)
    end.
