-- For wrk: prepares one transaction, then commits it, on each connection; every answer is looked at.
-- Arguments: topic, bytes of a value, seconds. Prints how many were settled, and the first wrong answer.
-- After so many seconds what is prepared is still committed, and then only GET /livez is asked until wrk ends.

local ffi = require("ffi") -- wrk offers no clock, and Lua's own counts whole seconds
ffi.cdef("struct timespec { long s; long ns; }; int clock_gettime(int clock, struct timespec *now);")

local BODY = '{"producer_group":"bench","messages":[{"topic":"%s","key":"%d","value":"%s"}]}'
local JSON = { ["Content-Type"] = "application/json" }
local now, threads = ffi.new("struct timespec"), {}
local bodies, prepared, first, last, turn, ends_at = {}, {}, 1, 0, 0, 0

settled, wrong = 0, "" -- global, so that `done` can ask each thread for them

local function clock_s()
  ffi.C.clock_gettime(1, now) -- CLOCK_MONOTONIC
  return tonumber(now.s) + tonumber(now.ns) / 1e9
end

function setup(thread)
  threads[#threads + 1] = thread
end

function init(args)
  for n = 1, 100 do
    bodies[n] = wrk.format("POST", "/v1/transactions", JSON, BODY:format(args[1], n, ("x"):rep(tonumber(args[2]))))
  end
  ends_at = clock_s() + tonumber(args[3])
end

function request()
  if first <= last then
    local id = prepared[first]
    prepared[first], first = nil, first + 1
    return wrk.format("POST", "/v1/transactions/" .. id .. "/commit", JSON, "")
  end
  if clock_s() >= ends_at then
    return wrk.format("GET", "/livez", {}, "")
  end
  turn = turn % #bodies + 1
  return bodies[turn]
end

function response(status, _, body)
  local id = body:match('"transaction_id":"([^"]+)"')
  if status == 201 and id then
    last = last + 1
    prepared[last] = id
  elseif status == 200 and id and body:find('"state":"COMMITTED"', 1, true) then
    settled = settled + 1
  elseif (status ~= 200 or id) and wrong == "" then
    wrong = status .. " " .. body:sub(1, 300)
  end
end

function done()
  local sum, found = 0, ""
  for _, thread in ipairs(threads) do
    sum = sum + thread:get("settled")
    found = found ~= "" and found or thread:get("wrong")
  end
  io.write("\nsettled ", sum, "\nwrong ", found, "\n")
end
