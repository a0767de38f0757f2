// Records in a slice: made, sorted, walked, looked up unevenly, replaced. No map: its hashes differ from run to run.
package main

// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
)

type item struct {
	i    int
	text string
	more []int
}

func main() {
	n, _ := strconv.Atoi(os.Args[1])
	state, sum := uint32(1), 0
	dice := func() int {
		state = (state*1103515245 + 12345) & 0x7fffffff
		return int(state>>8) % n
	}
	skewed := func() int { return min(dice(), dice(), dice()) }
	of := []*item{}
	for i := 0; i < n; i++ {
		of = append(of, &item{i, strings.Repeat("value of "+strconv.Itoa(i)+" ", 3), []int{i + 1, i + 2}})
	}
	sorted := append([]*item{}, of...)
	sort.Slice(sorted, func(a, b int) bool { return sorted[a].text < sorted[b].text })
	for _, item := range sorted {
		sum += item.i
	}
	for i := 0; i < n/2; i++ {
		sum += of[skewed()].more[1]
	}
	for k := 0; k < n/4; k++ {
		i := skewed()
		of[i] = &item{i, strings.Repeat("new value "+strconv.Itoa(i)+" ", 3), []int{i, i + 2}}
	}
	// C, so that the program is linked dynamically.
	fmt.Println(sum, C.abs(0))
}
