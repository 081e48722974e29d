// Serves OpenID Connect on a loopback port, with oidc-provider. Each line of standard input is a command in JSON, and
// each line of standard output the answer to one: "" when it is done, or what went wrong.
//
//   {"serve": {"port": 9000, "keys": [JWK, ...], "users": [...], "clients": [...], "lifetimes": {...}}}
//     the configuration from now on; the first one listens. Sessions and tokens outlive it. The first key signs.
//   {"reach": "yes"}, {"reach": "refused"}, {"reach": "hangs"}
//     what happens to those who connect
//
// It ends when standard input does, so that it never outlives the test that started it.
import { once } from "node:events"
import { createServer } from "node:http"
import { createInterface } from "node:readline"

// Standard output is for answers.
console.log = console.info = console.error

const { default: Provider } = await import("oidc-provider")
const { default: MemoryAdapter } = await import("oidc-provider/lib/adapters/memory_adapter.js")
const { default: LRU } = await import("oidc-provider/lib/helpers/lru.js")

const store = new LRU({ maxSize: 100_000 })
const workloads = "urn:dagctl:workloads" // the audience of client credentials whose claims name none

function provider({ port, keys, users, clients, lifetimes }) {
  const accounts = new Map(users.map((user) => [user.sub, user]))
  const names = [...new Set(users.flatMap(Object.keys))]
  const scopes = { profile: ["name"], email: ["email", "email_verified"], groups: ["groups"] }
  scopes.openid = ["sub", ...names.filter((name) => !Object.values(scopes).flat().includes(name) && name !== "sub")]
  const made = new Provider(`http://127.0.0.1:${port}`, {
    adapter: (model) => new MemoryAdapter(model, store),
    clients,
    jwks: { keys },
    cookies: { keys: ["cookies of tests"] },
    ttl: lifetimes,
    claims: scopes,
    conformIdTokenClaims: false, // ID tokens have the claims of all scopes
    findAccount: (ctx, sub) => (accounts.has(sub) ? { accountId: sub, claims: () => accounts.get(sub) } : undefined),
    pkce: { required: () => true },
    features: {
      devInteractions: { enabled: true },
      deviceFlow: { enabled: true },
      clientCredentials: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: (ctx) => (ctx.oidc.params?.grant_type === "client_credentials" ? workloads : undefined),
        getResourceServerInfo: (ctx, audience) => ({ audience, scope: "", accessTokenFormat: "jwt" }),
      },
    },
    formats: {
      // A CI system knows its runs; here, the request says what is known of one.
      customizers: {
        jwt: (ctx, token, jwt) => {
          if (token.kind !== "ClientCredentials") return
          Object.assign(jwt.payload, JSON.parse(ctx.oidc.body.workload ?? "{}"))
          jwt.header = { typ: "JWT" }
        },
      },
    },
  })
  made.on("server_error", (ctx, err) => console.error(err))
  return made
}

let port, handle
let reachable = Promise.resolve()
let release = () => {}
const server = createServer(async (req, res) => {
  await reachable
  handle(req, res)
})

async function listen() {
  server.listen(port, "127.0.0.1")
  await once(server, "listening") // throws what the server emits as an error
}

async function reach(how) {
  release()
  reachable = how === "hangs" ? new Promise((resolve) => (release = resolve)) : Promise.resolve()
  if (how === "refused" && server.listening) {
    server.close()
    server.closeAllConnections()
  }
  if (how !== "refused" && !server.listening) await listen()
}

async function run(command) {
  if (command.reach) return reach(command.reach)
  handle = provider(command.serve).callback()
  port = command.serve.port
  if (!server.listening) await listen()
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer = ""
  await run(JSON.parse(line)).catch((err) => (answer = String(err)))
  process.stdout.write(JSON.stringify(answer) + "\n")
}
process.exit()
