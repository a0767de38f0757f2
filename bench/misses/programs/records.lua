-- Records in a table: made, walked, looked up unevenly, replaced. No strings: their hashes differ from run to run.
local n, state, sum, of = tonumber(arg[1]), 1, 0, {}
local function dice() state = (state * 16807) % 2147483647 return state % n end
local function skewed() return math.min(dice(), dice(), dice()) end
for i = 0, n - 1 do of[i] = { i, { i * 0.5, i, i }, { i + 1, i + 2 } } end
for i = 0, n - 1 do sum = sum + of[i][1] end
for _ = 1, n / 2 do sum = sum + of[skewed()][3][2] end
for _ = 1, n / 4 do
  local i = skewed()
  of[i] = { i, { i * 0.25, i, i }, { i, i + 2 } }
end
print(string.format("%.0f", sum))
