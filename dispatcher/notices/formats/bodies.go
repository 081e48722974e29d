package formats

import (
	"encoding/json"
	"strings"
	"time"
)

type object = map[string]any

// Slack returns a message with blocks, for an incoming webhook. The limits are those of Block Kit: 150 characters of a
// header, 3000 of a section, ten fields of 2000.
func Slack(m Message) ([]byte, error) {
	blocks := []object{{"type": "header", "text": object{"type": "plain_text", "emoji": true,
		"text": Cut(m.mark()+" "+line(m.Title), 150)}}}
	section := func(text string) {
		blocks = append(blocks, object{"type": "section", "text": object{"type": "mrkdwn", "text": text}})
	}
	if m.Text != "" {
		// Nothing in it is markup: three backquotes would end the block.
		section("```" + strings.ReplaceAll(slackText(Cut(m.Text, 1000)), "```", "'''") + "```")
	}

	var fields []object
	for _, f := range m.Facts[:min(len(m.Facts), 10)] {
		fields = append(fields, object{"type": "mrkdwn",
			"text": "*" + slackText(f.Name) + "*\n" + slackText(Cut(line(f.Value), 300))})
	}
	if len(fields) > 0 {
		blocks = append(blocks, object{"type": "section", "fields": fields})
	}
	if m.Link != "" {
		section("<" + slackText(m.Link) + "|Open in dagctl>")
	}
	return json.Marshal(object{"text": slackText(Cut(m.mark()+" "+line(m.Title), 300)), "blocks": blocks})
}

// slackText escapes the characters that Slack gives a meaning.
func slackText(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}

// Teams returns a message with an Adaptive Card, as the Workflows app takes it. TextRuns show a text as it is, where a
// TextBlock would take it for Markdown.
func Teams(m Message) ([]byte, error) {
	color := map[State]string{Trouble: "Attention", Over: "Good", Test: "Accent"}[m.State]
	run := func(text string, more object) object {
		one := object{"type": "TextRun", "text": text}
		for name, value := range more {
			one[name] = value
		}
		return object{"type": "RichTextBlock", "inlines": []object{one}}
	}

	body := []object{run(m.mark()+" "+Cut(line(m.Title), 300),
		object{"size": "Large", "weight": "Bolder", "color": color})}
	if m.Text != "" {
		body = append(body, run(Cut(m.Text, 1000), object{"fontType": "Monospace"}))
	}
	var facts []object
	for _, f := range m.Facts {
		facts = append(facts, object{"title": f.Name, "value": markdownText(Cut(line(f.Value), 300))})
	}
	if len(facts) > 0 {
		body = append(body, object{"type": "FactSet", "facts": facts})
	}

	card := object{"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard",
		"version": "1.4", "fallbackText": Cut(line(m.Title), 300), "msteams": object{"width": "Full"}, "body": body}
	if m.Link != "" {
		card["actions"] = []object{{"type": "Action.OpenUrl", "title": "Open in dagctl", "url": m.Link}}
	}
	return json.Marshal(object{"type": "message", "attachments": []object{{
		"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": nil, "content": card}}})
}

// markdownText escapes the characters that make links and emphasis in the Markdown of cards.
func markdownText(text string) string {
	return strings.NewReplacer("\\", "\\\\", "*", "\\*", "_", "\\_", "[", "\\[", "]", "\\]", "<", "&lt;").Replace(text)
}

// PagerDuty returns an event of the Events API v2: it opens an incident, or resolves the one of the same topic. A test
// opens none: it resolves one that there never was, which PagerDuty accepts, so that nobody is called.
func PagerDuty(m Message, key string) ([]byte, error) {
	event := object{"routing_key": key, "dedup_key": m.Topic, "event_action": "trigger"}
	if m.State != Trouble {
		event["event_action"] = "resolve"
		return json.Marshal(event)
	}

	details := object{"id": m.ID}
	for _, f := range m.Facts {
		details[f.Name] = f.Value
	}
	if m.Text != "" {
		details["reason"] = Cut(m.Text, 2000)
	}
	payload := object{"summary": Cut(line(m.Title), 1024), "source": m.Source, "severity": m.Severity,
		"timestamp": m.At.UTC().Format(time.RFC3339), "class": m.Kind, "group": m.Source, "custom_details": details}
	if m.Part != "" {
		payload["component"] = m.Part
	}
	event["payload"], event["client"] = payload, "dagctl"
	if m.Link != "" {
		event["client_url"] = m.Link
		event["links"] = []object{{"href": m.Link, "text": "Open in dagctl"}}
	}
	return json.Marshal(event)
}
