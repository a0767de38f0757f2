"""Python: a graph of objects in dictionaries and sets; its components, shortest ways, and ranks of its nodes.

graph.py NODES: prints sums that depend on the argument alone."""

import heapq
import random
import sys


class Node:
    def __init__(self, nr):
        self.nr, self.near, self.rank = nr, {}, 1.0


def shortest(nodes, start):
    ways, heap = {start: 0}, [(0, start)]
    while heap:
        far, nr = heapq.heappop(heap)
        if far > ways[nr]:
            continue
        for other, weight in nodes[nr].near.items():
            if far + weight < ways.get(other, 1 << 60):
                ways[other] = far + weight
                heapq.heappush(heap, (far + weight, other))
    return ways


def main():
    count = int(sys.argv[1])
    chance = random.Random(1)
    nodes = {nr: Node(nr) for nr in range(count)}
    for _ in range(count * 3):
        a, b, weight = chance.randrange(count), chance.randrange(count), chance.randrange(1, 100)
        nodes[a].near[b] = nodes[b].near[a] = weight
    ways = shortest(nodes, 0)
    for _ in range(2):
        ranks = dict.fromkeys(nodes, 0.15)
        for node in nodes.values():
            for other in node.near:
                ranks[other] += 0.85 * node.rank / len(node.near)
        for nr, rank in ranks.items():
            nodes[nr].rank = rank
    print(len(ways), sum(ways.values()), f"{sum(node.rank * (node.nr % 7) for node in nodes.values()):.6f}")


main()
