-- Lua: a table of orders by customer, each a table of its own, sorted, changed and thrown away again.
--
-- orders.lua CUSTOMERS ROUNDS: prints a sum that depends on the arguments alone. Runs with Lua 5.4 and with LuaJIT.
local customers, rounds = tonumber(arg[1]), tonumber(arg[2])
local state = 12345

local function below(n)
    state = (state * 16807) % 2147483647
    return state % n
end

local function order(nr)
    return { nr = nr, name = "customer " .. below(customers), price = below(10000), tags = { below(7), below(11) } }
end

local all = {}
for i = 1, customers do
    all[i] = { order(i), order(i + 1), order(i + 2) }
end
local sum = 0
for round = 1, rounds do
    for _ = 1, math.floor(customers / 2) do
        local at = below(customers) + 1
        local orders = all[at]
        orders[#orders + 1] = order(round)
        table.sort(orders, function(a, b)
            if a.price ~= b.price then return a.price < b.price end
            return a.name < b.name
        end)
        if #orders > 4 then table.remove(orders) end
        sum = (sum * 31 + orders[1].price + orders[1].tags[2]) % 1000000007
    end
end
print(string.format("%.0f", sum))
