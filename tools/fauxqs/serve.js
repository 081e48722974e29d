// Serves SQS on a loopback port of its choice, which it prints. Its own command would bind all addresses.
// It ends when standard input does, so that it never outlives the tests that started it.
import { buildApp } from "fauxqs"

process.stdin.on("end", () => process.exit()).resume()
const app = buildApp({ logger: false })
console.log(await app.listen({ port: 0, host: "127.0.0.1" }))
