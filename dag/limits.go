package dag

// The limits on a DAG file. Parse refuses a file beyond one of them with a problem that names the limit; nothing is cut
// off silently.
const (
	MaxFileBytes      = 2 << 20  // the DAG file itself
	MaxDepth          = 32       // nesting of mappings and lists
	MaxProblems       = 200      // problems reported; the rest is counted
	MaxJobs           = 5000     // jobs of one DAG
	MaxInputs         = 32       // inputs of one job
	MaxOutputs        = 16       // outputs of one job
	MaxVariables      = 200      // variables of one DAG
	MaxVariableBytes  = 4096     // the value of one variable
	MaxExpandedBytes  = 2 << 20  // all that variables add to a DAG file
	MaxReferenceBytes = 1 << 20  // one file named by a *_file field
	MaxUDFFiles       = 1000     // files in one UDF folder
	MaxUDFBytes       = 16 << 20 // one UDF folder
	MaxFilesBytes     = 64 << 20 // all files that a DAG file names
	MaxKeyBytes       = 200      // a partition key
	MaxWindow         = 10_000   // partitions of an input in one window, and that one partition feeds
	MaxLookback       = 1000     // partitions that a source is asked for again each time
	MaxPriority       = 1000     // of a job or a task; the lowest is -MaxPriority
	MaxAttempts       = 100      // how often one task is tried
)
