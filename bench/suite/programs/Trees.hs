-- | Haskell: a map that is changed without changing it, under a collector that copies.
--
-- Trees KEYS CHANGES: prints a sum that depends on the arguments alone.
module Main (main) where

import Data.List (foldl')
import qualified Data.Map.Strict as Map
import System.Environment (getArgs)

next :: Int -> Int
next state = state * 16807 `mod` 2147483647

main :: IO ()
main = do
    [keys, changes] <- map read <$> getArgs
    let step (map', state) nr =
            let key = state `mod` keys
                other = next state `mod` keys
             in (Map.insert key [nr, other] (Map.delete other map'), next (next state))
        (final, _) = foldl' step (Map.empty, 12345) [1 .. changes]
        sum' = Map.foldlWithKey' (\sum'' key values -> (sum'' * 31 + key + sum values) `mod` 1000000007) 0 final
    putStrLn (show (Map.size final) ++ " keys, " ++ show sum')
