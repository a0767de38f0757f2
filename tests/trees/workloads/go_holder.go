// Holds memory in many goroutines and verifies it; a program that brings its own runtime and no C library.
package main

import "fmt"

func main() {
	done := make(chan uint64)
	for worker := uint64(0); worker < 4; worker++ {
		go func(seed uint64) {
			words := make([]uint64, 1<<20)
			for i := range words {
				words[i] = seed * uint64(i)
			}
			sum := uint64(0)
			for i, word := range words {
				if word != seed*uint64(i) {
					panic("a word is wrong")
				}
				sum += word
			}
			done <- sum
		}(worker)
	}
	total := uint64(0)
	for worker := 0; worker < 4; worker++ {
		total += <-done
	}
	fmt.Println("go: sum", total)
}
