// Go with C: goroutines that allocate, resize and free blocks through C's malloc, and keep what they know of them in Go's heap.
//
// blocks GOROUTINES OPERATIONS BLOCKS: prints a sum that depends on the arguments alone.
package main

// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"unsafe"
)

type block struct {
	at   unsafe.Pointer
	size int
	name string
}

func (b *block) ends() (*byte, *byte) {
	return (*byte)(b.at), (*byte)(unsafe.Add(b.at, b.size-1))
}

func work(nr, operations, count int) int {
	state := nr + 12345
	below := func(n int) int {
		state = state * 16807 % 2147483647
		return state % n
	}
	blocks := make([]*block, count)
	sum := 0
	for i := 0; i < operations; i++ {
		at := below(count)
		size := 16 << below(13)
		size += below(size)
		old := blocks[at]
		if old != nil {
			first, last := old.ends()
			if *first != byte(old.size) || *last != byte(old.size) {
				panic(old.name + " has lost its content")
			}
			sum = (sum*31 + old.size + len(old.name)) % 1000000007
		}
		made := &block{size: size, name: "block " + strconv.Itoa(i)}
		if old != nil && i%3 == 0 {
			made.at = C.realloc(old.at, C.size_t(size))
		} else {
			if old != nil {
				C.free(old.at)
			}
			made.at = C.malloc(C.size_t(size))
		}
		clear(unsafe.Slice((*byte)(made.at), size))
		first, last := made.ends()
		*first, *last = byte(size), byte(size)
		blocks[at] = made
	}
	for _, one := range blocks {
		if one != nil {
			C.free(one.at)
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
