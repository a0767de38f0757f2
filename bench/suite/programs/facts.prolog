% Prolog: facts that are asserted, indexed by two arguments, joined, and retracted.
%
% facts.prolog FACTS: prints a sum that depends on the argument alone.
:- dynamic edge/3.
:- initialization(main, main).

below(N, Value) :- nb_getval(state, State), Next is State * 16807 mod 2147483647, nb_setval(state, Next), Value is Next mod N.

main([Text]) :-
    atom_number(Text, Count),
    nb_setval(state, 12345),
    Nodes is Count // 3,
    forall(between(1, Count, I), (below(Nodes, A), below(Nodes, B), assertz(edge(A, B, I)))),
    aggregate_all(sum((X + Y) mod 97), (between(0, Nodes, A), edge(A, B, X), edge(B, _, Y)), Joined),
    forall((between(0, Nodes, A), A mod 3 =:= 0), retractall(edge(A, _, _))),
    aggregate_all(count, edge(_, _, _), Left),
    findall(B-A, edge(A, B, _), Pairs),
    msort(Pairs, Sorted),
    foldl([B-A, S0, S]>>(S is (S0 * 31 + A + B) mod 1000000007), Sorted, 0, Sum),
    format("~d ~d ~d~n", [Left, Joined, Sum]).
