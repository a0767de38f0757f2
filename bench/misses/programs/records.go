// Records in a map: made, walked, looked up unevenly, replaced.
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
	of := map[string]*item{}
	for i := 0; i < n; i++ {
		of["key "+strconv.Itoa(i)] = &item{i, strings.Repeat("value of "+strconv.Itoa(i)+" ", 3), []int{i + 1, i + 2}}
	}
	keys := []string{}
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		sum += of[key].i
	}
	for i := 0; i < n/2; i++ {
		sum += of["key "+strconv.Itoa(skewed())].more[1]
	}
	for k := 0; k < n / 4; k++ {
		i := skewed()
		of["key "+strconv.Itoa(i)] = &item{i, strings.Repeat("new value "+strconv.Itoa(i)+" ", 3), []int{i, i + 2}}
	}
	// C, so that the program is linked dynamically.
	fmt.Println(sum, C.abs(0))
}
