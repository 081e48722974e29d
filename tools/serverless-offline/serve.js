// Serves Lambda's Invoke on a loopback port, with the server of serverless-offline. The first argument is JSON:
// {"port": 9001, "folder": "/where/handlers/are", "functions": {"NAME": {"handler": "file.export", "timeout": 3}}}.
// It ends when standard input does, so that it never outlives the test that started it.
import Lambda from "serverless-offline/lambda"

const { port, folder, functions } = JSON.parse(process.argv[2])
process.chdir(folder) // Python finds a function's module below the folder it runs in

// As on AWS, a function invoked as an event may fail without anybody being told.
process.on("unhandledRejection", (err) => console.error(err))
process.stdin.on("end", () => process.exit()).resume()

const serverless = {
  config: { servicePath: folder },
  service: { service: "test", provider: { name: "aws", region: "us-east-1", runtime: "nodejs20.x" } },
}
const lambda = new Lambda(serverless, { host: "127.0.0.1", lambdaPort: port, terminateIdleLambdaTime: 60 })
lambda.create(
  Object.entries(functions).map(([name, definition]) => ({ functionKey: name, functionDefinition: { name, ...definition } })),
)
await lambda.start()
console.log("ready")
