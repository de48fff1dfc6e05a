-- Functions of Lua within the rules of scripts, and redis.call. They are written in Lua, so that values need not pass
-- through Rust. `own` has those that Rust gives.
local globals, own = ...
local pcall, xpcall, error, type, select, tonumber = pcall, xpcall, error, type, select, tonumber
local set, get, rawset, unpack, concat = setmetatable, getmetatable, rawset, unpack, table.concat
local sealed, tidy, compile, collect, used = own.sealed, own.tidy, own.compile, own.collect, own.used
local quietly, many = own.quietly, own.many

-- An error that a function of Rust has raised is text, as one of Lua's own functions is.
local function ended(ok, ...)
    if ok then return ok, ... end
    local why = ...
    if type(why) == 'userdata' then why = tidy(why) end
    return false, why
end

function globals.pcall(...) return ended(pcall(...)) end

function globals.xpcall(run, handle)
    return ended(xpcall(run, function(why)
        if type(why) == 'userdata' then why = tidy(why) end
        return handle(why)
    end))
end

local function must_not_be_sealed(value)
    if type(value) == 'table' and get(value) == sealed then error('Attempt to modify a readonly table', 3) end
end

function globals.setmetatable(...)
    must_not_be_sealed((...))
    return set(...)
end

function globals.rawset(...)
    must_not_be_sealed((...))
    return rawset(...)
end

-- Lua's own computes with the range as it is given, and may compute too much.
function globals.unpack(...)
    local all, from, to = ...
    from, to = tonumber(from or 1), tonumber(to or type(all) == 'table' and #all or 0)
    if from and to and not (to - from < 7999 and from > -2e9 and to < 2e9) then
        error('too many results to unpack', 2)
    end
    return unpack(...)
end

function globals.loadstring(text, name) return compile(text, name) end

function globals.load(piece, name)
    local all = {}
    while true do
        local text = piece()
        if text == nil or text == '' then break end
        all[#all + 1] = text
    end
    return compile(concat(all), name or '=(load)')
end

function globals.collectgarbage(what)
    if what == 'count' then return used() end
    if what == nil or what == 'collect' or what == 'step' then collect() end
    return 0
end

function globals.gcinfo() return (used()) end

-- More arguments than Rust can be given at once.
local function ask(...)
    if select('#', ...) > 4000 then return many(select('#', ...), {...}) end
    return quietly(...)
end

local redis = globals.redis
redis.pcall = ask
-- An error is a table, as redis 7 raises it.
function redis.call(...)
    local reply = ask(...)
    if type(reply) == 'table' and reply.err then error(reply, 0) end
    return reply
end
