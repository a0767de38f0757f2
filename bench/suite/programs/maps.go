// Go: goroutines that each keep a map of strings to slices and a tree, and replace entries at random.
//
// maps GOROUTINES ENTRIES OPERATIONS: prints a sum that depends on the arguments alone. It imports C to be linked dynamically.
package main

import "C"

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

type node struct {
	key         int
	value       []int
	left, right *node
}

func (n *node) insert(key int, value []int) *node {
	if n == nil {
		return &node{key: key, value: value}
	}
	if key < n.key {
		n.left = n.left.insert(key, value)
	} else if key > n.key {
		n.right = n.right.insert(key, value)
	} else {
		n.value = value
	}
	return n
}

func work(nr, entries, operations int) int {
	state := nr + 12345
	below := func(n int) int {
		state = state * 16807 % 2147483647
		return state % n
	}
	table := map[string][]int{}
	var tree *node
	sum := 0
	for i := 0; i < operations; i++ {
		key := below(entries)
		name := "entry " + strconv.Itoa(key)
		old := table[name]
		sum = (sum*31 + len(old)) % 1000000007
		value := make([]int, 1+below(24))
		value[0] = i
		table[name] = value
		if i%4 == 0 {
			tree = tree.insert(key, value)
		}
	}
	return sum
}

func main() {
	number := func(at int) int {
		n, err := strconv.Atoi(os.Args[at])
		if err != nil {
			panic(err)
		}
		return n
	}
	sums := make([]int, number(1))
	var all sync.WaitGroup
	for nr := range sums {
		all.Add(1)
		go func(nr int) {
			defer all.Done()
			sums[nr] = work(nr, number(2), number(3))
		}(nr)
	}
	all.Wait()
	fmt.Println(sums)
}
